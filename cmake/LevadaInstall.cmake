# cmake --install: headers, library, command and what find_package(levada CONFIG) reads.
# python/CMakeLists.txt includes this file too: a wheel carries a library of its own (levada_installed) in the package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(levada_installed levada)
if(LEVADA_PYTHON)
  set(levada_installed levada_shared)
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME python)
  set(CMAKE_INSTALL_INCLUDEDIR levada/include)
  set(CMAKE_INSTALL_LIBDIR levada/lib)
endif()
get_target_property(levada_installed_type ${levada_installed} TYPE)
set(levada_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/levada)

set(levada_absent_headers)
if(NOT TARGET levada_mpi)
  list(APPEND levada_absent_headers PATTERN levada/engine/mpi EXCLUDE)
endif()
if(LEVADA_PYTHON)
  list(APPEND levada_absent_headers PATTERN levada/tokens/sentencepiece EXCLUDE)
endif()
# The headers of levada/cli are the command's own, base/json.h and conformance_kit.h the library's.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/levada DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*_testing.h" EXCLUDE PATTERN json.h EXCLUDE
        PATTERN conformance_kit.h EXCLUDE PATTERN cli EXCLUDE ${levada_absent_headers})
set(levada_soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(levada_links)
set_target_properties(${levada_installed} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${levada_soversion})
if(LEVADA_PYTHON)
  # Symbolic links in a wheel are copies: there is one file, and its name is the one that programs look for.
  set_target_properties(${levada_installed} PROPERTIES VERSION ${levada_soversion})
  set(levada_links LIBRARY NAMELINK_SKIP)
endif()
install(TARGETS ${levada_installed} EXPORT levadaTargets ${levada_links})
if(TARGET levada_command AND NOT LEVADA_PYTHON)
  set_target_properties(levada_command PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS levada_command)
endif()

# Apart from the others, since only who asks for the component mpi needs MPI.
if(TARGET levada_mpi)
  set_target_properties(levada_mpi PROPERTIES VERSION ${PROJECT_VERSION}
                                              SOVERSION ${levada_soversion})
  install(TARGETS levada_mpi EXPORT levadaMpiTargets)
  install(EXPORT levadaMpiTargets NAMESPACE levada:: DESTINATION ${levada_package_dir})
endif()

install(EXPORT levadaTargets NAMESPACE levada:: DESTINATION ${levada_package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/levadaConfig.cmake.in ${PROJECT_BINARY_DIR}/levadaConfig.cmake
                              INSTALL_DESTINATION ${levada_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/levadaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/levadaConfig.cmake ${PROJECT_BINARY_DIR}/levadaConfigVersion.cmake
        DESTINATION ${levada_package_dir})
if(levada_installed_type STREQUAL STATIC_LIBRARY)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindxxHash.cmake ${CMAKE_CURRENT_LIST_DIR}/Findzstd.cmake
                ${CMAKE_CURRENT_LIST_DIR}/FindSentencePiece.cmake
          DESTINATION ${levada_package_dir})
endif()
if(NOT LEVADA_PYTHON)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
