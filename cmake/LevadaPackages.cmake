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

# Links the archive of an imported library, where the system has one, instead of the shared library.
function(levada_prefer_archive target archive)
  find_library(levada_${archive}_archive NAMES lib${archive}.a)
  mark_as_advanced(levada_${archive}_archive)
  if(NOT levada_${archive}_archive)
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
