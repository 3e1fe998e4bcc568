# The C++ library and the command. From a checkout: vcpkg install levada --overlay-ports=packaging/vcpkg
# For a submission, SOURCE_PATH comes from vcpkg_from_github() of a release.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES mpi LEVADA_MPI)
vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        ${FEATURE_OPTIONS}
        -DLEVADA_INSTALL=ON
        -DLEVADA_TESTS=OFF
        -DLEVADA_BENCH=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME levada CONFIG_PATH lib/cmake/levada)
vcpkg_copy_tools(TOOL_NAMES levada AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
