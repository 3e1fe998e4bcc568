# Checks of the source itself, as part of the build and of the tests.

# Every header of `target` that no source of its own includes before all else (script/check-includes sees to it that
# the others are), compiled with nothing before it.
function(levada_check_headers_alone target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/levada/*.h)
  set(sources)
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "\\.h$" ".cc" own_source ${header})
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${own_source})
      set(source ${PROJECT_BINARY_DIR}/headers_alone/${own_source})
      file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n" @ONLY)
      list(APPEND sources ${source})
    endif()
  endforeach()
  add_library(levada_headers_alone OBJECT ${sources})
  levada_configure(levada_headers_alone)
  target_link_libraries(levada_headers_alone PRIVATE ${target})
endfunction()

function(levada_check_source)
  foreach(check includes source)
    add_test(NAME check_${check} COMMAND ${PROJECT_SOURCE_DIR}/script/check-${check})
    set_tests_properties(check_${check} PROPERTIES LABELS static)
  endforeach()
endfunction()
