// A corpus as Python describes it.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "levada/corpus/corpus.h"

namespace levada::python {

struct NamedCorpus {
  std::vector<std::string> paths;
  CorpusOptions options;
};

/// Builds a corpus from the fields of levada.Corpus, all of which must be present. With the GIL. Throws
/// InvalidArgument.
NamedCorpus corpus_of(const nanobind::kwargs& given);

}  // namespace levada::python
