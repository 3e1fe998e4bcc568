# cmake --install: headers, library, command and what find_package(levada CONFIG) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(levada_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/levada)

set(levada_mpi_headers)
if(NOT TARGET levada_mpi)
  set(levada_mpi_headers PATTERN levada/engine/mpi EXCLUDE)
endif()
# The headers of levada/cli are the command's own, base/json.h and conformance_kit.h the library's.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/levada DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*_testing.h" EXCLUDE PATTERN json.h EXCLUDE
        PATTERN conformance_kit.h EXCLUDE PATTERN cli EXCLUDE ${levada_mpi_headers})
set_target_properties(levada PROPERTIES VERSION ${PROJECT_VERSION}
                                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
install(TARGETS levada EXPORT levadaTargets)
if(TARGET levada_command)
  set_target_properties(levada_command PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS levada_command)
endif()

# Apart from the others, since only who asks for the component mpi needs MPI.
if(TARGET levada_mpi)
  set_target_properties(levada_mpi PROPERTIES VERSION ${PROJECT_VERSION}
                                              SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  install(TARGETS levada_mpi EXPORT levadaMpiTargets)
  install(EXPORT levadaMpiTargets NAMESPACE levada:: DESTINATION ${levada_package_dir})
endif()

install(EXPORT levadaTargets NAMESPACE levada:: DESTINATION ${levada_package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/levadaConfig.cmake.in ${PROJECT_BINARY_DIR}/levadaConfig.cmake
                              INSTALL_DESTINATION ${levada_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/levadaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/levadaConfig.cmake ${PROJECT_BINARY_DIR}/levadaConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindxxHash.cmake ${CMAKE_CURRENT_LIST_DIR}/Findzstd.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindSentencePiece.cmake
        DESTINATION ${levada_package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
