#include "levada/pipeline/failure.h"

#include <fmt/format.h>

namespace levada::pipeline {

void write_failure(ByteWriter& writer, const Failure& failure) {
  writer.put_sized(std::string_view(failure.stage));
  writer.put_sized(std::string_view(failure.process));
  writer.put(failure.item);
  writer.put(failure.kind);
  writer.put_sized(std::string_view(failure.message));
  writer.put_sized(std::string_view(failure.traceback));
  writer.put_sized(ByteView(failure.exception));
}

Failure read_failure(ByteReader& reader) {
  Failure failure;
  failure.stage = reader.get_string();
  failure.process = reader.get_string();
  failure.item = reader.get<std::int64_t>();
  failure.kind = reader.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "kind of error");
  failure.message = reader.get_string();
  failure.traceback = reader.get_string();
  failure.exception = reader.get_bytes();
  return failure;
}

std::string describe(const Failure& failure) {
  std::string text;
  if (!failure.stage.empty()) text = fmt::format("stage {}, item {}", failure.stage, failure.item);
  if (!failure.process.empty()) text += fmt::format("{}in {}", text.empty() ? "" : ", ", failure.process);
  text += fmt::format("{}{}", text.empty() ? "" : ": ", failure.message);
  if (!failure.traceback.empty()) text += "\n" + failure.traceback;
  return text;
}

}  // namespace levada::pipeline
