# levada::mpi, the engine over MPI: a library of its own, so that nothing else is linked with MPI.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI 3.1 QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  message(STATUS "levada::mpi is left out: it takes MPI 3.1 (libopenmpi-dev and openmpi-bin, or libmpich-dev and mpich)")
  return()
endif()

add_library(levada_mpi)
add_library(levada::mpi ALIAS levada_mpi)
levada_configure(levada_mpi)
levada_add_module(levada_mpi engine/mpi)
target_link_libraries(levada_mpi PUBLIC levada MPI::MPI_CXX PRIVATE $<BUILD_INTERFACE:fmt::fmt>)
set_target_properties(levada_mpi PROPERTIES EXPORT_NAME mpi)

# Programs that mpirun starts: mpi_test, which is run with three ranks here and with other numbers by script/check mpi,
# and mpi_large_test, which takes 5 GB of memory and is run by script/check mpi alone.
function(levada_add_mpi_tests)
  foreach(name mpi_test mpi_large_test)
    add_executable(${name} ${PROJECT_SOURCE_DIR}/levada/engine/mpi/${name}.cc)
    levada_configure(${name})
    target_link_libraries(${name} PRIVATE levada_mpi levada fmt::fmt GTest::gtest)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  endforeach()
  foreach(name mpi_program mpi_job)
    add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/${name}.cc)
    levada_configure(${name})
    target_link_libraries(${name} PRIVATE levada_mpi levada fmt::fmt GTest::gtest)
  endforeach()
  levada_add_test(mpi_host_watch_test SOURCES ${PROJECT_SOURCE_DIR}/levada/engine/mpi/host_watch_test.cc LABELS mpi)
  target_link_libraries(mpi_host_watch_test PRIVATE levada_mpi)
  levada_add_test(mpi_start_test SOURCES ${PROJECT_SOURCE_DIR}/tests/mpi_start_test.cc
                  ${PROJECT_SOURCE_DIR}/tests/command_run.cc LABELS mpi)
  target_compile_definitions(mpi_start_test PRIVATE LEVADA_COMMAND="" MPIEXEC="${MPIEXEC_EXECUTABLE}"
                                                    MPIRUN="${PROJECT_SOURCE_DIR}/script/mpirun"
                                                    MPI_PROGRAM="$<TARGET_FILE:mpi_program>")
  add_dependencies(mpi_start_test mpi_program)
  add_test(NAME mpi_test COMMAND ${PROJECT_SOURCE_DIR}/script/mpirun ${MPIEXEC_EXECUTABLE} -n 3 $<TARGET_FILE:mpi_test>
                                 --gtest_brief=1)
  set_tests_properties(mpi_test PROPERTIES TIMEOUT 600 LABELS mpi)
endfunction()
