// Reads arbitrary bytes as another rank's report of a pipeline, and renders it.
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/report/page.h"
#include "levada/report/trace_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto pipeline = levada::report::decode_pipeline(std::as_bytes(std::span(data, size)));
    if (levada::report::decode_pipeline(levada::report::encode(pipeline)) != pipeline) std::abort();
    static_cast<void>(levada::report::pipeline_page(pipeline));
    static_cast<void>(levada::report::trace_json({}, {}, {pipeline}));
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
