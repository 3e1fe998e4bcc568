# The page of reports as C++: page.html with the style and the scripts in it, made anew when one of them changes.
# With -P (SOURCE the folder of the files, OUTPUT) this file is the script that makes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(levada_embed_page target)
    set(folder ${PROJECT_SOURCE_DIR}/levada/report)
    set(output ${PROJECT_BINARY_DIR}/levada_report_page.cc)
    set(script ${PROJECT_SOURCE_DIR}/cmake/LevadaPage.cmake)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DSOURCE=${folder} -DOUTPUT=${output} -P ${script}
      DEPENDS ${folder}/page.html ${folder}/page.css ${folder}/page.js ${folder}/page_pipeline.js ${script}
      VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()
  return()
endif()

file(READ ${SOURCE}/page.html page)
file(READ ${SOURCE}/page.css style)
file(READ ${SOURCE}/page_pipeline.js pipeline)
file(READ ${SOURCE}/page.js script)
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${pipeline}${script}" page "${page}")
file(WRITE ${OUTPUT} "#include <string_view>

namespace levada::report {

std::string_view page_text();
std::string_view page_text() {
  return R\"levada-page(${page})levada-page\";
}

}  // namespace levada::report
")
