# The libraries that Levada is built with, as Debian and Ubuntu package them.

# levada_find_packages(PACKAGE DEBIAN ...): find_package() for each; those that are missing are named all at once, with
# the line that installs them.
macro(levada_find_packages)
  set(levada_packages ${ARGN})
  set(levada_missing)
  while(levada_packages)
    list(POP_FRONT levada_packages levada_package levada_debian)
    find_package(${levada_package} QUIET)
    if(NOT ${levada_package}_FOUND)
      list(APPEND levada_missing ${levada_debian})
    endif()
  endwhile()
  if(levada_missing)
    list(JOIN levada_missing " " levada_missing)
    message(FATAL_ERROR "Levada is built with packages that are missing here. To install them:\n"
                        "  apt-get install --no-install-recommends ${levada_missing}")
  endif()
endmacro()

# levada_bring_along(TARGET ARCHIVE DIRECTORY): links the archive of an imported library, where the system has one;
# elsewhere the shared library is installed into DIRECTORY, for what looks for it there.
function(levada_bring_along target archive directory)
  find_library(levada_${archive}_archive NAMES lib${archive}.a)
  mark_as_advanced(levada_${archive}_archive)
  if(NOT levada_${archive}_archive)
    install(FILES $<TARGET_FILE:${target}> RENAME $<TARGET_SONAME_FILE_NAME:${target}> DESTINATION ${directory}
            COMPONENT python)
    return()
  endif()
  get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${levada_${archive}_archive}")
  foreach(configuration IN LISTS configurations)
    if(configuration)
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} "${levada_${archive}_archive}")
    endif()
  endforeach()
endfunction()
