#include "levada/corpus/opened_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/corpus/packed_samples.h"
#include "levada/tokens/token_cache.h"

namespace levada {
namespace {

std::unique_ptr<SampleSet> make_samples(const SourceFiles& files, const CorpusOptions& options) {
  if (options.packing == Packing::cut) return make_cut_samples(files, options.sequence);
  return std::make_unique<PackedSamples>(files, options.packing, options.sequence, options.pad_to,
                                         KnownOrders(token_cache_folder(options.cache_dir), options.io.warn),
                                         options.progress);
}

void expect_samples(const SampleSet& samples, const SourceFiles& files, const std::string& who,
                    const CorpusOptions& options) {
  if (samples.size() > 0) return;
  if (files.documents() == 0 && options.split.size() > 1) {
    throw InvalidArgument(
        fmt::format("the split {} leaves no document of {} for {}: it has too few for such a small part; add data, or "
                    "name separate files",
                    fmt::join(options.split, ","), who, options.part));
  }
  if (options.packing != Packing::cut) {
    throw InvalidArgument(fmt::format("{} holds only empty documents: there is nothing to pack", who));
  }
  throw InvalidArgument(
      fmt::format("{} holds {} tokens, but one sample of sequence {} takes {}: add data or shorten the sequence", who,
                  files.tokens(), options.sequence, options.sequence + 1));
}

}  // namespace

OpenedSource::OpenedSource(const CorpusSource& source, std::vector<OpenedFile> opened, const CorpusOptions& options,
                           bool alone, std::optional<std::uint64_t> shuffle_seed)
    : name(source.name),
      weight(source.weight),
      files(std::move(opened)),
      samples(make_samples(files, options)),
      seed(shuffle_seed) {
  const auto shown = printable(name);
  expect_samples(*samples, files, alone ? "the corpus" : fmt::format("the source {}", shown), options);
  max_samples = source.max_samples;
  if (!source.max_tokens) return;
  const auto in_tokens = static_cast<std::int64_t>(static_cast<double>(*source.max_tokens) / mean_tokens());
  if (in_tokens < 1) {
    throw InvalidArgument(
        fmt::format("the source {} may give at most {} tokens, less than a sample", shown, *source.max_tokens));
  }
  max_samples = std::min(in_tokens, max_samples.value_or(in_tokens));
}

}  // namespace levada
