# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DGENERATOR=... -DCOMPILER=... -P run.cmake
# Installs a build into an empty prefix, then configures, builds and runs a project that has nothing but that prefix.
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
step(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
     -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/prefix)
step(${CMAKE_COMMAND} --build ${WORK}/build)
step(${WORK}/build/app)
if(EXISTS ${WORK}/build/mpi_app)
  step(${WORK}/build/mpi_app)
endif()
if(EXISTS ${WORK}/prefix/bin/levada)
  step(${WORK}/prefix/bin/levada --help)
endif()

# A Levada that was built without MPI says so to a project that needs it. The other one is made such a one.
file(GLOB_RECURSE mpi_targets ${WORK}/prefix/*/levadaMpiTargets*.cmake)
if(mpi_targets)
  file(REMOVE ${mpi_targets})
endif()
file(WRITE ${WORK}/without_mpi/CMakeLists.txt
     "cmake_minimum_required(VERSION 3.20)\nproject(without_mpi CXX)\n"
     "find_package(levada CONFIG REQUIRED COMPONENTS mpi)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${WORK}/without_mpi -B ${WORK}/without_mpi/build -G ${GENERATOR}
          -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/prefix
  RESULT_VARIABLE status
  OUTPUT_QUIET
  ERROR_VARIABLE errors)
string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
if(status EQUAL 0 OR NOT errors MATCHES "This Levada was built without MPI: install MPI .* with cmake --install")
  message(FATAL_ERROR "a project that needs levada::mpi, which is not there, gets: ${errors}")
endif()
