# The artefacts. Every file of src, but for the *check.cc, is compiled twice: with initial-exec TLS, for what is loaded
# at start (folio_objects; the override_*.cc files apart, so that tests can link the rest beside another malloc), and
# with the default TLS model for what may be loaded later (folio_embed_objects).
#
#   folio_core    libfolio-core.a       no override; for the tests, which see hidden symbols, with the *check.cc
#   folio_explore libfolio-explore.a    the same, with a hook at every access to memory for the interleaving explorer
#   folio_count   libfolio-count.a      the same, telling of each atomic read-modify-write
#   folio_counts  libfolio-count.so     that with override, to preload, and who counts them (bench/counts.cc)
#   folio_shared  libfolio.so.0         override; preload and link
#   folio_object  libfolio.o            override; one relocatable object, always linked whole
#   folio_static  libfolio.a            that object as an archive
#   folio_embed   libfolio-embed.so.0   no override; may be loaded by dlopen

include(CheckSymbolExists)

file(GLOB_RECURSE folio_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cc)
# Of src/os the files of this system, and what is the same on all (docs/PORTING.md).
string(TOLOWER "${CMAKE_SYSTEM_NAME}" folio_system)
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/os/${folio_system}.cc)
  message(FATAL_ERROR "there is no src/os/${folio_system}.cc: docs/PORTING.md says what it would have to do")
endif()
list(FILTER folio_sources EXCLUDE REGEX "/src/os/[^/]*\\.cc$")
file(GLOB folio_system_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/os/${folio_system}*.cc)
list(APPEND folio_sources ${folio_system_sources} ${PROJECT_SOURCE_DIR}/src/os/report.cc)
# What only tests call: no library that programs use has it.
set(folio_check_sources ${folio_sources})
list(FILTER folio_check_sources INCLUDE REGEX "check\\.cc$")
list(REMOVE_ITEM folio_sources ${folio_check_sources})
set(folio_override_sources ${folio_sources})
list(FILTER folio_override_sources INCLUDE REGEX "/src/api/override_[^/]*\\.cc$")
list(REMOVE_ITEM folio_sources ${folio_override_sources})
set(folio_override_pthread ${PROJECT_SOURCE_DIR}/src/api/override_pthread.cc)
list(REMOVE_ITEM folio_override_sources ${folio_override_pthread})

add_library(folio_objects OBJECT ${folio_sources})
target_compile_options(folio_objects PRIVATE -ftls-model=initial-exec)
target_link_libraries(folio_objects PRIVATE folio_flags)
set_target_properties(folio_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)

add_library(folio_core STATIC $<TARGET_OBJECTS:folio_objects> ${folio_check_sources})
target_link_libraries(folio_core PRIVATE folio_flags)
set_target_properties(folio_core PROPERTIES OUTPUT_NAME folio-core)
target_include_directories(folio_core PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_features(folio_core PUBLIC cxx_std_20)
target_link_libraries(folio_core PUBLIC folio_sanitize Threads::Threads)

foreach(variant explore count)
  string(TOUPPER ${variant} define)
  add_library(folio_${variant} STATIC EXCLUDE_FROM_ALL ${folio_sources} ${folio_check_sources})
  set_target_properties(folio_${variant} PROPERTIES OUTPUT_NAME folio-${variant})
  target_compile_definitions(folio_${variant} PUBLIC FOLIO_${define}=1)
  target_include_directories(folio_${variant} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(folio_${variant} PUBLIC cxx_std_20)
  target_link_libraries(folio_${variant} PRIVATE folio_flags PUBLIC folio_sanitize Threads::Threads)
endforeach()

set_target_properties(folio_count PROPERTIES POSITION_INDEPENDENT_CODE ON)
# Each plain access calls a hook, which the explorer defines; the sanitizer's own library is not linked.
set(folio_explore_plain -fsanitize=thread $<$<CXX_COMPILER_ID:GNU>:--param=tsan-instrument-func-entry-exit=0>)
target_compile_options(folio_explore PRIVATE ${folio_explore_plain})

# A sanitizer brings its own malloc: only folio_core can stand beside it.
if(FOLIO_SANITIZE)
  return()
endif()

# The nothrow forms of operator new catch what a new-handler throws; and a program may replace some forms alone.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/api/override_new.cc
                            PROPERTIES COMPILE_OPTIONS "-fexceptions;-fsemantic-interposition")

add_library(folio_override_objects OBJECT ${folio_override_sources})
target_compile_options(folio_override_objects PRIVATE -ftls-model=initial-exec)
target_link_libraries(folio_override_objects PRIVATE folio_flags)
set_target_properties(folio_override_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)

add_library(folio_embed_objects OBJECT ${folio_sources})
target_compile_definitions(folio_embed_objects PRIVATE FOLIO_EMBED=1)
target_link_libraries(folio_embed_objects PRIVATE folio_flags)
set_target_properties(folio_embed_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)

# Linked by the C driver: the C++ driver would add libstdc++, and gcc has -nostdlib++ only from 13 on.
function(folio_shared_library name output)
  add_library(${name} SHARED ${ARGN})
  set_target_properties(
    ${name}
    PROPERTIES OUTPUT_NAME ${output}
               VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR}
               LINKER_LANGUAGE C
               LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/folio.map;${PROJECT_SOURCE_DIR}/cmake/replaceable.list")
  target_link_options(
    ${name}
    PRIVATE
    -Wl,--no-undefined
    -Wl,--as-needed
    -Wl,-Bsymbolic-functions
    -Wl,--dynamic-list=${PROJECT_SOURCE_DIR}/cmake/replaceable.list
    # Bound and sealed before the program starts; never unloaded, because threads hold its memory.
    -Wl,-z,now,-z,relro,-z,nodelete,-z,noexecstack
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/folio.map)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  target_include_directories(${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# Three files are other ones in the shared library. In it alone, operator new looks for a C++ library that came late,
# and pthread_create for the next one: a static link has none, and would warn of dlopen. And in shared libraries the
# chunk table is readable only from the start; glibc's loader can do that, musl's knows writable zero-filled data only,
# as the kernel does for programs. And linkers that know the script: not gold, nor mold.
check_symbol_exists(__GLIBC__ stdlib.h FOLIO_GLIBC)
separate_arguments(linker_flags UNIX_COMMAND "${CMAKE_C_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}")
execute_process(COMMAND ${CMAKE_C_COMPILER} ${linker_flags} -Wl,--version OUTPUT_VARIABLE linker ERROR_QUIET)
if(FOLIO_GLIBC AND linker MATCHES "GNU ld|LLD")
  set(FOLIO_TABLE_SEGMENT ON)
endif()
set(folio_shared_files override_new|chunk_table)
add_library(folio_shared_objects OBJECT ${PROJECT_SOURCE_DIR}/src/api/override_new.cc ${folio_override_pthread}
                                        ${PROJECT_SOURCE_DIR}/src/space/chunk_table.cc)
target_compile_definitions(folio_shared_objects PRIVATE FOLIO_SHARED=1)
target_compile_options(folio_shared_objects PRIVATE -ftls-model=initial-exec)
target_link_libraries(folio_shared_objects PRIVATE folio_flags)
set_target_properties(folio_shared_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
if(FOLIO_TABLE_SEGMENT)
  target_compile_definitions(folio_shared_objects PRIVATE FOLIO_TABLE_READ_ONLY=1)
  target_compile_definitions(folio_embed_objects PRIVATE FOLIO_TABLE_READ_ONLY=1)
endif()
folio_shared_library(
  folio_shared folio $<FILTER:$<TARGET_OBJECTS:folio_objects>,EXCLUDE,${folio_shared_files}>
  $<FILTER:$<TARGET_OBJECTS:folio_override_objects>,EXCLUDE,${folio_shared_files}>
  $<TARGET_OBJECTS:folio_shared_objects>)
folio_shared_library(folio_embed folio-embed $<TARGET_OBJECTS:folio_embed_objects>)
if(FOLIO_TABLE_SEGMENT)
  foreach(library folio_shared folio_embed)
    target_link_options(${library} PRIVATE -Wl,-T,${PROJECT_SOURCE_DIR}/cmake/folio_table.ld)
  endforeach()
endif()
set_target_properties(folio_shared PROPERTIES EXPORT_NAME folio)
set_target_properties(folio_embed PROPERTIES EXPORT_NAME embed)
# Where --as-needed is the default, a program that allocates only through other libraries would lose Folio silently.
target_link_options(folio_shared INTERFACE LINKER:--no-as-needed)
add_library(folio::folio ALIAS folio_shared)

# Every thread has a CPU of its own there: os::cpu() is bench/counts.cc's.
add_library(folio_counts SHARED EXCLUDE_FROM_ALL ${folio_override_sources} ${folio_override_pthread}
                                                  ${PROJECT_SOURCE_DIR}/bench/counts.cc)
set_target_properties(folio_counts PROPERTIES OUTPUT_NAME folio-count LINKER_LANGUAGE C)
target_compile_options(folio_counts PRIVATE -ftls-model=initial-exec)
target_link_options(folio_counts PRIVATE -Wl,-z,now,-z,nodelete -Wl,--wrap=_ZN5folio2os3cpuEv)
target_link_libraries(folio_counts PRIVATE folio_flags ${CMAKE_DL_LIBS} $<LINK_LIBRARY:WHOLE_ARCHIVE,folio_count>)
add_library(folio::embed ALIAS folio_embed)

# One object holds the whole family, so a static link takes all of it or nothing, never a part beside the libc's own.
# Its hidden symbols become local: the program cannot collide with them.
set(folio_object_file ${PROJECT_BINARY_DIR}/libfolio.o)
add_custom_command(
  OUTPUT ${folio_object_file}
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -Wl,--force-group-allocation -o ${folio_object_file}
          $<TARGET_OBJECTS:folio_objects> $<TARGET_OBJECTS:folio_override_objects>
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${folio_object_file}
  DEPENDS folio_objects folio_override_objects $<TARGET_OBJECTS:folio_objects> $<TARGET_OBJECTS:folio_override_objects>
  COMMAND_EXPAND_LISTS VERBATIM
  COMMENT "Linking relocatable object libfolio.o")
add_custom_target(folio_object ALL DEPENDS ${folio_object_file})

add_library(folio_static STATIC ${folio_object_file})
set_source_files_properties(${folio_object_file} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
set_target_properties(folio_static PROPERTIES OUTPUT_NAME folio LINKER_LANGUAGE C EXPORT_NAME static)
add_dependencies(folio_static folio_object)
target_link_libraries(folio_static INTERFACE Threads::Threads)
target_include_directories(folio_static INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# A static C++ library has what throws std::bad_alloc only where somebody asks for it.
target_link_options(folio_static INTERFACE $<$<LINK_LANGUAGE:CXX>:-Wl,-u,_ZSt17__throw_bad_allocv>)
add_library(folio::static ALIAS folio_static)

add_custom_target(libraries DEPENDS folio_shared folio_object folio_static folio_embed)

# A link item, not an archive: it is linked even when only the libc calls malloc.
add_library(folio_override INTERFACE)
target_link_libraries(folio_override INTERFACE ${folio_object_file} Threads::Threads)
target_include_directories(folio_override INTERFACE ${PROJECT_SOURCE_DIR}/include)
add_dependencies(folio_override folio_object)
add_library(folio::override ALIAS folio_override)
