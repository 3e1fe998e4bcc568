#include <chrono>
#include <string_view>
#include <vector>

#include "levada/feed/feed.h"

namespace levada {

std::vector<Metric> FeedStats::metrics(const MetricLabels& labels) const {
  std::vector<Metric> all;
  const auto add = [&](std::string_view name, std::string_view help, auto value) {
    all.push_back({.name = name, .help = help, .labels = labels, .value = static_cast<double>(value)});
  };
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  add("levada_feed_batches_total", "Batches that the rank received.", batches);
  add("levada_feed_samples_total", "Samples in these batches, without padding.", samples);
  add("levada_feed_bytes_total", "Bytes of the tensors of these batches.", bytes);
  add("levada_feed_wait_seconds_total", "Time that the rank has waited for batches.", seconds(waited));
  add("levada_feed_copied_batches_total", "Batches returned as copies because the rank held more than depth.",
      copied_batches);
  add("levada_feed_sent_bytes_total", "Bytes of the messages that the rank sent as a reader, each counted once.",
      sent_bytes);
  add("levada_feed_read_bytes_total", "Bytes that the rank read from storage for samples.", read.bytes_read);
  return all;
}

}  // namespace levada
