# How Levada's own targets are compiled, and how a module's folder becomes part of the library and of the tests.

function(levada_configure target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                            -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # It sees overlapping copies in "literal" + std::string, where there are none (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(LEVADA_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL Debug)
    target_compile_definitions(${target} PRIVATE LEVADA_ASSERTIONS)  # levada/base/assert.h
  endif()
  if(LEVADA_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(LEVADA_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${LEVADA_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LEVADA_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # GCC's manual: sanitizers' instrumentation makes it see variables that are not initialized where all are.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
      if(LEVADA_SANITIZE MATCHES thread)
        # It does not follow fences. Those of ShmEndpoint only tell a reader that a record has been overwritten meanwhile.
        target_compile_options(${target} PRIVATE -Wno-tsan)
      endif()
    endif()
  endif()
endfunction()

# Compiles the sources, which are of one folder, a dozen at a time, since most of the time goes to what they include. A
# source that has properties of its own stays alone.
function(levada_compile_together target)
  list(LENGTH ARGN count)
  if(NOT LEVADA_UNITY OR count LESS 2)
    return()
  endif()
  math(EXPR chunks "(${count} + 11) / 12")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set(number 0)
  foreach(source IN LISTS ARGN)
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    math(EXPR chunk "${number} * ${chunks} / ${count}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${chunk})
    math(EXPR number "${number} + 1")
  endforeach()
endfunction()

# Adds the sources of levada/<module> to the library, but for tests, their support (*_testing.cc) and the command's main.
function(levada_add_module library module)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/levada/${module}/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|_testing|/main)\\.cc$")
  # The suite that engines are tested with is for programs with an engine of their own.
  set(suite ${sources})
  list(FILTER suite INCLUDE REGEX "/conformance[^/]*$")
  list(FILTER sources EXCLUDE REGEX "/conformance[^/]*$")
  target_sources(${library} PRIVATE ${sources})
  levada_compile_together(${library} ${sources})
  target_sources(levada PRIVATE ${suite})
  levada_compile_together(levada ${suite})
endfunction()

# Runs into which ctest divides the test program of a module that mostly waits, so that none takes longer than half a minute.
set(LEVADA_SHARDS_engine_joined 12)
set(LEVADA_SHARDS_engine_shm 3)
set(LEVADA_SHARDS_feed 3)
set(LEVADA_SHARDS_pipeline 2)
set(LEVADA_LABELS_engine_shm kills)

# One test program of a module's *_test.cc files.
function(levada_add_module_tests module)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/levada/${module}/*_test.cc)
  if(sources)
    string(REPLACE "/" "_" name ${module})
    levada_add_test(${name}_test SOURCES ${sources} SHARDS ${LEVADA_SHARDS_${name}} LABELS ${LEVADA_LABELS_${name}})
    levada_compile_together(${name}_test ${sources})
  endif()
endfunction()

# levada_add_test(name SOURCES a.cc ... [RANKS 1 2 4] [SHARDS n] [TIMEOUT seconds] [LABELS l...])
# A GoogleTest program. With RANKS it is run once for each number, which stands in the environment as LEVADA_TEST_RANKS. With
# SHARDS its tests are divided among n runs, which ctest starts first.
function(levada_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;SHARDS" "SOURCES;RANKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
    if(LEVADA_SANITIZE)
      set(arg_TIMEOUT 1800)
    endif()
  endif()
  add_executable(${name} ${arg_SOURCES})
  levada_configure(${name})
  # What is tested is optimized in full, the tests themselves for the time they take to compile.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${name} PRIVATE levada_testing levada fmt::fmt nlohmann_json::nlohmann_json GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(arg_SHARDS GREATER 1)
    math(EXPR last "${arg_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}_${shard} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${name}_${shard} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" COST 100
                                                       ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard}")
    endforeach()
  elseif(NOT arg_RANKS)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${name}_${ranks} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_${ranks} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                                                     ENVIRONMENT LEVADA_TEST_RANKS=${ranks})
  endforeach()
endfunction()
