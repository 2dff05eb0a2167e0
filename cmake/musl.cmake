# Builds on musl with Debian's musl-tools, which wrap the C compiler only. Folio needs no C++ library; of its headers it
# includes a few that hold no code (<new>), which are taken from gcc. They ask for glibc's version: musl has none.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_HOST_SYSTEM_PROCESSOR})
set(CMAKE_C_COMPILER musl-gcc)
set(CMAKE_CXX_COMPILER g++)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(FOLIO_MUSL ON)

set(multiarch ${CMAKE_SYSTEM_PROCESSOR}-linux)
execute_process(COMMAND g++ -print-file-name=include OUTPUT_VARIABLE gcc_include OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND g++ -dumpversion OUTPUT_VARIABLE gcc_version OUTPUT_STRIP_TRAILING_WHITESPACE)
set(cxx_flags -nostdinc -nostdinc++)
foreach(folder /usr/include/c++/${gcc_version} /usr/include/${multiarch}-gnu/c++/${gcc_version}
               /usr/include/${multiarch}-musl ${gcc_include})
  list(APPEND cxx_flags -isystem ${folder})
endforeach()
list(JOIN cxx_flags " " cxx_flags)
set(CMAKE_CXX_FLAGS_INIT "${cxx_flags} '-D__GLIBC_PREREQ(major,minor)=0'")
