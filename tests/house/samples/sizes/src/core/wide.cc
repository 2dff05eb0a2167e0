// TODO: whose?
// TODO(ann): hers.
// A comment that runs on well beyond the hundred and twenty columns which are all that a line may have, in code as in this.
