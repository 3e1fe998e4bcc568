// Which kind of data a name stands for.
#pragma once

#include <optional>
#include <string>

namespace levada {

enum class DataKind { jsonl, text, megatron };

/// What the name says: .jsonl, .txt, .bin or .idx; or that there is a .bin or .idx of this prefix. Empty for what
/// cannot be read.
std::optional<DataKind> data_kind(const std::string& path);

/// Throws InvalidArgument that says which kinds there are.
[[noreturn]] void refuse_kind(const std::string& path);

}  // namespace levada
