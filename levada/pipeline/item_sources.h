// Where the items of pipelines of C++ come from. All divide by themselves: item i of part p of n is item p + n * i, so
// that parts taken in turns give the order of the whole.
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

/// The integers begin, begin + step, ... before end, as int64. Throws InvalidArgument for a step of zero.
std::shared_ptr<const ItemSource> range(std::int64_t begin, std::int64_t end, std::int64_t step = 1);

/// Copies of these.
std::shared_ptr<const ItemSource> trees(std::vector<Tree> trees);

/// Samples of a Levada source, each by itself: without the dimension along which batches of them lie.
struct SampleOptions {
  std::string what = "samples";  ///< for people
  std::string identity = {};     ///< as ItemSource::identity(); empty: `what`
  /// Samples of an epoch; epoch e are those from e * it on. None: every epoch is all there are.
  std::function<std::optional<std::int64_t>(const levada::Source&)> per_epoch = {};
  /// Returns the sample at which the source resumes from its cursor; throws for a cursor of another source. Empty:
  /// unchecked.
  std::function<std::int64_t(levada::Source&, ByteView)> resume = {};
};
/// `open` is called once for each iterator, which has the source to itself.
std::shared_ptr<const ItemSource> samples(std::function<std::shared_ptr<levada::Source>()> open,
                                          SampleOptions options = {});

/// The samples of a corpus; a pipeline's epoch is one of its. `options.epochs` is not looked at. Opened when it is
/// first read, in each process, and kept from epoch to epoch.
std::shared_ptr<const ItemSource> corpus(std::vector<std::string> paths, CorpusOptions options = {});

}  // namespace levada::pipeline
