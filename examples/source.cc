// A custom source: samples that are in no file. Here the samples are sums to learn, made from their number, and the
// ranks are threads (inproc); with launch::join() instead they would be the ranks of a job.
#include <cstdio>
#include <exception>
#include <memory>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/feed.h"

namespace {

/// Sample g: two numbers and their sum.
class Sums final : public levada::Source {
 public:
  explicit Sums(std::int64_t samples) : samples_(samples) {}

  std::optional<std::int64_t> size() const override { return samples_; }

  std::optional<levada::Tree> read(std::int64_t first, std::int64_t count, levada::Memory& memory) override {
    count = std::min(count, samples_ - first);  // fewer only at the end
    if (count < 1) return std::nullopt;
    auto terms = memory.empty(levada::dtypes::int64, {count, 2});  // memory that is sent without a copy
    auto sums = memory.empty(levada::dtypes::int64, {count});
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t a = first + row, b = a * a;
      terms.mutable_as<std::int64_t>()[2 * row] = a;
      terms.mutable_as<std::int64_t>()[2 * row + 1] = b;
      sums.mutable_as<std::int64_t>()[row] = a + b;
    }
    return levada::Tree::dict({{"terms", std::move(terms)}, {"sums", std::move(sums)}});
  }

  levada::Bytes cursor(std::int64_t next) const override {  // the state to resume from: the next number
    levada::ByteWriter bytes;
    bytes.put(next);
    return std::move(bytes).take();
  }
  std::string activity() const override { return "adding"; }
  levada::ReadStats stats() const override { return {}; }

 private:
  std::int64_t samples_;
};

void run() {
  const auto mesh = levada::Mesh::parse("dp=2,tp=2");
  levada::inproc::run_ranks(mesh.size(), [&](const std::shared_ptr<levada::Engine>& engine) {
    levada::Feed feed(engine, mesh, levada::layouts::data_parallel(), std::make_shared<Sums>(100),
                      {.batch = 8, .tail = levada::Tail::short_});
    std::int64_t samples = 0, wrong = 0;
    while (auto batch = feed.next()) {
      const auto terms = batch->tensor("terms").as<std::int64_t>(), sums = batch->tensor("sums").as<std::int64_t>();
      for (std::size_t i = 0; i < sums.size(); ++i) wrong += terms[2 * i] + terms[2 * i + 1] != sums[i] ? 1 : 0;
      samples += batch->samples;
    }
    const auto place = mesh.describe(engine->info().rank);
    std::printf("%s: %lld samples, %lld wrong\n", place.c_str(), static_cast<long long>(samples),
                static_cast<long long>(wrong));
  });
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "source: %s\n", error.what());
    return 1;
  }
}
