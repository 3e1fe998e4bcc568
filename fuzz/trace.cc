// Reads arbitrary bytes as traces, analyzes and renders them, and writes them again.
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/report/history.h"
#include "levada/report/page.h"
#include "levada/report/trace_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto trace = levada::decode_trace(std::as_bytes(std::span(data, size)));
    if (levada::decode_trace(levada::encode(trace)) != trace) std::abort();
    const auto traces = levada::report::explain_waits({trace, trace});
    static_cast<void>(levada::report::trace_json({}, traces));
    static_cast<void>(
        levada::report::feed_json({}, {.paths = {}, .traces = traces, .edges = {}, .pipelines = {}, .error = {}}));
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
