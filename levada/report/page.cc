#include "levada/report/page.h"

#include <algorithm>
#include <string_view>

namespace levada::report {

/// Returns page.html with the style and the script in it. The build generates this function from the three files.
std::string_view page_text();

namespace {

std::string page_of(std::string json) {
  // In a script element, only "<" could end it.
  for (auto at = json.find('<'); at != json.npos; at = json.find('<', at)) json.replace(at, 1, "\\u003c");
  constexpr std::string_view place = "@DATA@";
  std::string page(page_text());
  return page.replace(page.find(place), place.size(), json);
}

}  // namespace

std::string feed_page(const FeedReport& report, const FeedHistory& history) {
  return page_of(feed_json(report, history));
}

std::string pipeline_page(const PipelineReport& pipeline) {
  return page_of("{\"feed\":null,\"kinds\":[],\"more_pipelines\":0,\"pipelines\":[{\"rank\":-1,\"report\":" +
                 pipeline.json + "}]}");
}

}  // namespace levada::report
