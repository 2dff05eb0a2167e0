// The tables' addresses and counts, which readers outside find by their symbols.
#include "insight/sample_tables.h"

namespace folio {

constinit Atomic<Sample*> sample_tables[kSampleTables];
constinit SampleCounts sample_counts;

Sample* sample_table(unsigned k) {
  // [sample-table] acquire: sees zeros; pairs with make_table. unseen: the explorer has no scenario of samples
  return sample_tables[k].load(order::acquire);
}

}  // namespace folio
