// Tokenizes all texts of a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "levada/sources/megatron_writer.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"
#include "levada/tokens/work_team.h"

namespace levada {

/// Returns the dtype in which Megatron-LM stores tokens of a vocabulary of this size.
DType token_dtype(std::int64_t vocabulary_size);

struct TokenizeOptions {
  std::optional<std::int64_t> end_of_document;  ///< appended to every document that has tokens; empty: none
  WorkTeam* team = nullptr;                     ///< threads that help the calling one with encoding; null: none
  /// Called after each piece of text, on any of the threads, one at a time. An exception aborts the work.
  std::function<void()> progress = {};
};

/// Appends the documents that `reader` has left to `writer`, in order regardless of the number of threads. Each becomes
/// a document with one sequence, or with none if it has no tokens. Throws SourceError if reading or writing fails, and
/// InvalidArgument for a token that the writer's dtype cannot hold.
void tokenize(TextReader& reader, const Tokenizer& tokenizer, MegatronWriter& writer, const TokenizeOptions& options);

}  // namespace levada
