// What a pipeline tells of itself, as it comes from other processes and ranks: JSON up to a zero byte, then traces.
#include <algorithm>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/report/pipeline_html.h"
#include "levada/report/trace_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto zero = static_cast<std::size_t>(std::find(data, data + size, 0) - data);
  const auto traces = bytes.subspan(std::min(zero + 1, size));
  try {
    const auto decoded = levada::decode_stage_traces(traces);
    if (levada::decode_stage_traces(levada::encode(decoded)) != decoded) std::abort();
  } catch (const levada::CorruptMessage&) {
  }
  try {
    const auto pipeline = levada::report::pipeline_from_json(levada::as_text(bytes.first(zero)), traces);
    static_cast<void>(levada::report::pipeline_page(pipeline));
    static_cast<void>(levada::report::trace_json({}, {}, {pipeline}));
  } catch (const levada::Error&) {
  }
  return 0;
}
