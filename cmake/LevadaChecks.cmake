# Checks of the source itself, as part of the build and of the tests.

# Every header of `target` compiled with nothing before it, twice, so that its guard is seen to work too.
function(levada_check_headers_alone target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/levada/*.h)
  set(sources)
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "[/.]" "_" name ${header})
    set(source ${PROJECT_BINARY_DIR}/headers_alone/${name}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  add_library(levada_headers_alone OBJECT ${sources})
  levada_configure(levada_headers_alone)
  target_compile_options(levada_headers_alone PRIVATE -O0)
  target_link_libraries(levada_headers_alone PRIVATE ${target})
endfunction()

# Only clang can make programs of the fuzz targets; that they compile is seen with any compiler.
function(levada_check_fuzz_targets target)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*.cc)
  add_library(levada_fuzz_targets OBJECT ${sources})
  levada_configure(levada_fuzz_targets)
  target_compile_options(levada_fuzz_targets PRIVATE -O0)
  target_link_libraries(levada_fuzz_targets PRIVATE ${target} fmt::fmt)
endfunction()

function(levada_check_source)
  foreach(check includes source)
    add_test(NAME check_${check} COMMAND ${PROJECT_SOURCE_DIR}/script/check-${check})
    set_tests_properties(check_${check} PROPERTIES LABELS static)
  endforeach()
endfunction()
