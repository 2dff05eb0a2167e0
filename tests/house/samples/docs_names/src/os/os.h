// Nothing.
bool reserve(int bytes);
[[noreturn]] void abandon();
