// Item sources of C++ pipelines. All of them support partitions: item i of partition p of n is item p + n * i, so
// taking the partitions in turn yields the original order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/corpus/corpus.h"
#include "levada/pipeline/graph.h"
#include "levada/sources/source.h"

namespace levada::pipeline {

/// Yields the integers begin, begin + step, ... before end, as int64. Throws InvalidArgument for a step of zero.
std::shared_ptr<const ItemSource> range(std::int64_t begin, std::int64_t end, std::int64_t step = 1);

/// Yields copies of these trees.
std::shared_ptr<const ItemSource> trees(std::vector<Tree> trees);

/// Options for reading a Levada source one sample at a time, without the batch dimension.
struct SampleOptions {
  std::string what = "samples";  ///< human-readable description
  std::string identity = {};     ///< the ItemSource::identity(); empty: `what`
  /// Returns the number of samples per epoch n; epoch e begins at sample e * n. None: every epoch is the whole source.
  std::function<std::optional<std::int64_t>(const levada::Source&)> per_epoch = {};
  /// Returns the sample at which the source resumes from its cursor. Throws for a cursor of another source. Empty:
  /// unchecked.
  std::function<std::int64_t(levada::Source&, ByteView)> resume = {};
};
/// Yields the samples of a source. `open` is called once for each iterator, which has exclusive use of the source.
std::shared_ptr<const ItemSource> samples(std::function<std::shared_ptr<levada::Source>()> open,
                                          SampleOptions options = {});

/// Yields the samples of a corpus; a pipeline's epoch is one of the corpus. Ignores `options.epochs`. Each process
/// opens the corpus at its first read and keeps it from epoch to epoch.
std::shared_ptr<const ItemSource> corpus(std::vector<std::string> paths, CorpusOptions options = {});

}  // namespace levada::pipeline
