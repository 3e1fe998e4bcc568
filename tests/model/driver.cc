// Runs feeds on threads as ranks. Reads jobs as JSON, one a line, and prints what every rank received, one line a job.
// Does not know what is right: tests/model/feed_model.py does.
#include <iostream>
#include <map>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/threads.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;
using I = std::int64_t;

template <typename T>
std::optional<T> optional_of(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<T>());
}

/// Returns element `offset` of sample `sample` of field `field`; feed_model.py computes the same.
std::uint64_t element(I sample, I field, I offset) {
  return static_cast<std::uint64_t>(sample * 1000003 + field * 7919 + offset * 31 + 7);
}

class ModelSource : public Source {
 public:
  explicit ModelSource(const Json& feed)
      : fields_(feed["fields"]),
        size_(feed["size"].get<I>()),
        known_(feed["known_size"].get<bool>()),
        fails_at_(optional_of<I>(feed["fails_at"])),
        lends_(feed["lends"].get<bool>()) {}

  std::optional<I> size() const override { return known_ ? std::optional(size_) : std::nullopt; }

  std::optional<Tree> read(I first, I count, Memory& memory) override {
    if (fails_at_ && first <= *fails_at_ && *fails_at_ < first + count) {
      throw SourceError("sample " + std::to_string(*fails_at_) + " is broken");
    }
    known_ = known_ || first + count > size_;
    count = std::min(count, size_ - first);
    if (count <= 0) return std::nullopt;
    HeapMemory heap;
    Memory& from = lends_ ? static_cast<Memory&>(heap) : memory;
    std::vector<std::pair<Key, Tree>> items;
    for (std::size_t number = 0; number < fields_.size(); ++number) {
      const Json& field = fields_[number];
      items.emplace_back(field["name"].get<std::string>(), leaf(field, static_cast<I>(number), first, count, from));
    }
    return Tree::dict(std::move(items));
  }

  Bytes cursor(I next) const override {
    ByteWriter writer;
    writer.put(next);
    return std::move(writer).take();
  }
  std::string activity() const override { return "making samples"; }
  ReadStats stats() const override { return {}; }

 private:
  Tree leaf(const Json& field, I number, I first, I count, Memory& memory) const {
    const auto kind = field["kind"].get<std::string>();
    if (kind == "value") return Tree(first);
    const bool has_samples = kind != "table";
    Shape shape;
    if (has_samples) shape.push_back(count);
    I stride = 1;
    for (const Json& dim : field["dims"]) {
      shape.push_back(dim.get<I>());
      stride *= dim.get<I>();
    }
    const auto dtype = field["dtype"].get<std::string>();
    if (dtype == "int64") return fill<I>(field, shape, number, has_samples ? first : 0, stride, memory);
    if (dtype == "int32") return fill<std::int32_t>(field, shape, number, has_samples ? first : 0, stride, memory);
    if (dtype == "float32") return fill<float>(field, shape, number, has_samples ? first : 0, stride, memory);
    return fill<std::uint8_t>(field, shape, number, has_samples ? first : 0, stride, memory);
  }

  template <typename T>
  static Tree fill(const Json& field, const Shape& shape, I number, I first, I stride, Memory& memory) {
    Tensor tensor = memory.empty(dtype_of<T>(), shape);
    auto values = tensor.mutable_as<T>();
    const bool has_segments = field["kind"] == "segments";
    for (std::size_t i = 0; i < values.size(); ++i) {
      const I sample = first + static_cast<I>(i) / stride, offset = static_cast<I>(i) % stride;
      if (has_segments) {
        const Json& rows = field["rows"];
        values[i] = static_cast<T>(
            rows[static_cast<std::size_t>(sample) % rows.size()][static_cast<std::size_t>(offset)].get<I>());
      } else {
        values[i] = static_cast<T>(element(sample, number, offset) & (sizeof(T) == 1 ? 0xff : 0xffff));
      }
    }
    return Tree(std::move(tensor));
  }

  const Json& fields_;
  I size_;
  bool known_;
  std::optional<I> fails_at_;
  bool lends_;
};

std::string hex(ByteView bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(byte & std::byte{15})];
  }
  return text;
}

Json as_json(const std::optional<I>& number) {
  return number ? Json(*number) : Json();
}

Json as_json(const Batch& batch) {
  Json leaves = Json::object();
  for (std::size_t i = 0; i < batch.content.leaves.size(); ++i) {
    const std::string path(batch.content.schema.leaves()[i].path);
    if (const auto* tensor = std::get_if<Tensor>(&batch.content.leaves[i])) {
      const Tensor dense = Tensor::copy_of(*tensor);
      Json shape = Json::array();
      for (const I extent : dense.shape()) shape.push_back(extent);
      leaves[path] = {dense.dtype().name(), shape, hex(dense.bytes())};
    } else {
      leaves[path] = std::get<I>(batch.content.leaves[i]);
    }
  }
  ByteReader reader(batch.cursor);
  const auto& totals = batch.totals;
  return {{"step", batch.step},
          {"samples", batch.samples},
          {"cursor", reader.get<I>()},
          {"totals", totals ? Json{totals->samples, as_json(totals->tokens), as_json(totals->labels)} : Json()},
          {"leaves", leaves}};
}

FeedOptions options_of(const Json& feed) {
  FeedOptions options;
  options.batch = feed["batch"].get<I>();
  options.divide = parse_divide(feed["divide"].get<std::string>());
  options.tail = parse_tail(feed["tail"].get<std::string>());
  options.first_sample = feed["first"].get<I>();
  options.steps = optional_of<I>(feed["steps"]);
  options.readers = Readers::parse(feed["readers"].get<std::string>());
  options.depth = feed["depth"].get<int>();
  options.ahead = feed["ahead"].get<bool>();
  options.timeout = std::chrono::seconds(20);
  options.name = feed["name"].get<std::string>();
  return options;
}

/// One rank's side of one feed.
class Consumer {
 public:
  Consumer(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Json& feed) : json_(feed) {
    guarded([&] {
      feed_ = std::make_unique<Feed>(engine, mesh, Layout::from_json(feed["layout"].dump()),
                                     std::make_shared<ModelSource>(feed), options_of(feed));
    });
  }

  /// Returns whether there may be more steps.
  bool advance(int rank) {
    if (!feed_) return false;
    bool has_more = false;
    guarded([&] {
      if (const auto leaves_at = optional_of<I>(json_["leaves_at"]); leaves_at && taken_ >= *leaves_at) {
        return feed_->close();
      }
      if (const Json& stop = json_["stop"]; !stop.is_null() && stop[0] == rank && stop[1] == taken_) {
        feed_->request_stop();
      }
      const auto batch = feed_->next();
      if (!batch) return;
      outcome_["batches"].push_back(as_json(*batch));
      ++taken_;
      has_more = true;
    });
    if (!has_more && feed_->end()) outcome_["end"] = std::string(to_string(feed_->end()->cause));
    return has_more;
  }

  Json take_outcome() { return std::move(outcome_); }

 private:
  void guarded(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      outcome_["error"] = {std::string(error_name(error.kind())), std::string(error.what())};
    }
  }

  const Json& json_;
  std::unique_ptr<Feed> feed_;
  Json outcome_ = {{"batches", Json::array()}, {"error", nullptr}, {"end", nullptr}};
  I taken_ = 0;
};

/// Returns what one rank received of each feed.
Json run_rank(const std::shared_ptr<Engine>& engine, const Mesh& mesh, const Json& job) {
  std::vector<std::unique_ptr<Consumer>> consumers;
  for (const Json& feed : job["feeds"]) consumers.push_back(std::make_unique<Consumer>(engine, mesh, feed));
  std::vector<Consumer*> busy;
  for (const auto& consumer : consumers) busy.push_back(consumer.get());
  while (!busy.empty()) {
    std::erase_if(busy, [&](Consumer* consumer) { return !consumer->advance(engine->info().rank); });
  }
  Json outcome = Json::array();
  for (const auto& consumer : consumers) outcome.push_back(consumer->take_outcome());
  return outcome;
}

/// Runs jobs. Making an engine takes longer than most jobs, so jobs that need no fresh engines share some: each runs in
/// a new subgroup of them.
class Ranks {
 public:
  /// Returns what each rank received of each feed.
  Json run(const Json& job) {
    const Mesh mesh = Mesh::parse(job["mesh"].get<std::string>());
    const auto size = static_cast<std::size_t>(mesh.size());
    Json outcomes(size, nullptr);
    if (job["fresh"].get<bool>()) {
      inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
        outcomes[static_cast<std::size_t>(engine->info().rank)] = run_rank(engine, mesh, job);
      });
      return outcomes;
    }
    if (engines_.size() < size) engines_ = inproc::make_group(mesh.size());
    std::vector<int> members(size);
    std::iota(members.begin(), members.end(), 0);
    ThreadGroup threads;
    for (std::size_t rank = 0; rank < size; ++rank) {
      threads.start("a rank",
                    [&, rank] { outcomes[rank] = run_rank(engines_[rank]->subgroup(members, "job"), mesh, job); });
    }
    threads.join();
    return outcomes;
  }

 private:
  std::vector<std::shared_ptr<Engine>> engines_;
};

}  // namespace
}  // namespace levada

int main() {
  levada::Ranks ranks;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << levada::json_text(ranks.run(levada::Json::parse(line))) << std::endl;
  }
}
