#include "levada/corpus/corpus_options.h"

#include <fmt/format.h>

#include <limits>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/corpus/split.h"

namespace levada {

void check_epochs(std::int64_t epochs) {
  if (epochs < 0) throw InvalidArgument(fmt::format("epochs must be 0 (endless) or positive, got {}", epochs));
}

void CorpusOptions::check() const {
  check_epochs(epochs);
  if (sequence < 1) throw InvalidArgument(fmt::format("sequence must be at least 1 token, got {}", sequence));
  if (sequence > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(fmt::format("a sequence of {} tokens is longer than any model takes", sequence));
  }
  if (pad_to < 1 || sequence % pad_to != 0) {
    throw InvalidArgument(
        fmt::format("documents cannot be padded to multiples of {}: the sequence of {} must be a multiple of it",
                    pad_to, sequence));
  }
  if (pad_to > 1 && packing == Packing::cut) {
    throw InvalidArgument("only packed documents are padded to a multiple: set packing to best-fit or documents");
  }
  part_of_split(split, part);
  if (!(max_bad >= 0 && max_bad <= 1)) {
    throw InvalidArgument(
        fmt::format("max_bad is {}; it must be a share of a text's lines, from 0 to 1 (max_bad=, --max-bad)", max_bad));
  }
  if (ids != dtypes::int64 && ids != dtypes::int32) {
    throw InvalidArgument(fmt::format("tokens cannot be of {}: use int64 or int32", ids.name()));
  }
  if (each_once && epochs != 1) {
    throw InvalidArgument(fmt::format("each sample is read once, so in one epoch, not in {}", epochs));
  }
  if (reset_attention_mask && !attention_mask) {
    throw InvalidArgument("reset_attention_mask requires an attention mask (attention_mask)");
  }
  const bool are_chats = tokenizer && tokenizer->is_chat();
  if (are_chats && !end_of_document.empty()) {
    throw InvalidArgument(
        fmt::format("eod is {}, but a chat template itself ends a chat: omit one of the two (eod=, --eod)",
                    printable(end_of_document)));
  }
  if (minds_ends() && (packing != Packing::cut || are_chats)) {
    throw InvalidArgument(
        "reset_position_ids, reset_attention_mask and eod_mask_loss apply only to cut documents that end with a token: "
        "packed documents already begin at position 0 and attend only to themselves");
  }
}

}  // namespace levada
