#include "levada/sources/data_kind.h"

#include <fmt/format.h>

#include <filesystem>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/sources/megatron_index.h"

namespace levada {
namespace {

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

std::optional<DataKind> data_kind(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".jsonl") return DataKind::jsonl;
  if (extension == ".txt") return DataKind::text;
  const auto paths = MegatronPaths::of(path);
  if (path == paths.bin || path == paths.idx || is_there(paths.bin) || is_there(paths.idx)) return DataKind::megatron;
  return std::nullopt;
}

void refuse_kind(const std::string& path) {
  throw InvalidArgument(
      fmt::format("{} is of no kind that can be read: .jsonl (an object a line), .txt (one document) and .bin with "
                  ".idx (Megatron-LM's, by either name or what stands before it) can",
                  printable(path)));
}

}  // namespace levada
