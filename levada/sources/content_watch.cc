#include "levada/sources/content_watch.h"

#include "levada/sources/sampled_digest.h"

namespace levada {

ContentWatch::ContentWatch(const File& file)
    : file_(file),
      before_(file.identity()),
      sampled_(before_.changed_ns == 0 ? "" : sampled_digest(file, before_.size)),
      changed_ns_(before_.changed_ns) {}

std::string ContentWatch::sampled() const {
  return sampled_.empty() ? sampled_digest(file_, before_.size) : sampled_;
}

void ContentWatch::expect_unchanged() const {
  const auto now = levada::expect_unchanged(file_, before_);
  if (now.changed_ns == changed_ns_) return;
  if (sampled_digest(file_, before_.size) != sampled_) fail_written(file_);
  changed_ns_ = now.changed_ns;
}

}  // namespace levada
