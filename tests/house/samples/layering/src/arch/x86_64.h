#pragma once

#if defined(__x86_64__)
inline int word_bits() { return 64; }
#endif
