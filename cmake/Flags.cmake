# Interface targets that carry flags: folio_warnings (ours and the tests'), folio_sanitize (everything), and
# folio_flags (the library alone).

add_library(folio_warnings INTERFACE)
target_compile_options(
  folio_warnings
  INTERFACE -Wall
            -Wextra
            -Wshadow
            -Wundef
            -Wvla
            -Wcast-qual
            -Wpointer-arith
            -Wwrite-strings
            -Wimplicit-fallthrough
            -Wformat=2
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
            $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
            $<$<BOOL:${FOLIO_WERROR}>:-Werror>)

add_library(folio_sanitize INTERFACE)
if(FOLIO_SANITIZE)
  set(sanitize_flags -fsanitize=${FOLIO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(folio_sanitize INTERFACE ${sanitize_flags})
  target_link_options(folio_sanitize INTERFACE ${sanitize_flags})
endif()

add_library(folio_flags INTERFACE)
target_link_libraries(folio_flags INTERFACE folio_warnings folio_sanitize)
target_compile_features(folio_flags INTERFACE cxx_std_20)
target_include_directories(folio_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# No C++ runtime: nothing here may need libstdc++, which itself allocates.
target_compile_options(
  folio_flags
  INTERFACE -fno-exceptions
            -fno-rtti
            -fno-threadsafe-statics
            -fvisibility=hidden
            -fvisibility-inlines-hidden
            -fno-semantic-interposition
            # A unique symbol cannot be made local in libfolio.o.
            $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>
            # The compiler must not turn the allocator's own malloc and memset into calloc.
            -fno-builtin-malloc
            -fno-builtin-calloc
            -fno-builtin-realloc
            -fno-builtin-free)
