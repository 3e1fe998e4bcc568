// The cost of a step's message apart from its payload: flattening the tree, writing prefix and body, reading them and
// assembling the tree.
#include <benchmark/benchmark.h>

#include "levada/pipeline/tree_item_traits.h"
#include "levada/tree/codec.h"

namespace levada {
namespace {

// The four fields of a GPT step, as small as possible: only costs that do not grow with them matter here.
Tree gpt_batch() {
  return Tree::dict({{"tokens", Tensor::zeros(dtypes::int64, {1, 8})},
                     {"labels", Tensor::zeros(dtypes::int64, {1, 8})},
                     {"position_ids", Tensor::zeros(dtypes::int64, {1, 8})},
                     {"loss_mask", Tensor::zeros(dtypes::float32, {1, 8})}});
}

// A message of such a batch, and everything needed to write it again.
struct Sample {
  Tree tree = gpt_batch();
  FlatTree flat = flatten(tree);
  std::vector<PlacedTensor> placed;
  std::size_t body_offset = message_prefix_bytes;
  std::shared_ptr<Bytes> memory = std::make_shared<Bytes>(4096);
  Bytes envelope = Bytes(64);
  std::size_t bytes = 0;
  SchemaCache cache;

  Sample() {
    for (const auto& leaf : flat.leaves) {
      const auto& tensor = std::get<Tensor>(leaf);
      placed.push_back({tensor.shape(), body_offset});
      body_offset += align_up(tensor.bytes().size(), leaf_alignment);
    }
    write();
    cache.add(flat.schema);
  }
  void write() { bytes = write_message(*memory, body_offset, envelope, flat.schema, false, flat.leaves, placed); }
  ByteView message() const { return ByteView(*memory).first(bytes); }
};

void flatten_anew(benchmark::State& state) {
  const auto tree = gpt_batch();
  for (auto _ : state) benchmark::DoNotOptimize(flatten(tree));
}
BENCHMARK(flatten_anew);

void flatten_known_structure(benchmark::State& state) {
  const Sample sample;
  for (auto _ : state) benchmark::DoNotOptimize(flatten(sample.tree, sample.flat.schema));
}
BENCHMARK(flatten_known_structure);

void write_known_schema(benchmark::State& state) {
  Sample sample;
  for (auto _ : state) {
    sample.write();
    benchmark::ClobberMemory();
  }
}
BENCHMARK(write_known_schema);

void read_known_schema(benchmark::State& state) {
  Sample sample;
  for (auto _ : state) benchmark::DoNotOptimize(read_message(sample.message(), sample.memory, sample.cache));
}
BENCHMARK(read_known_schema);

void read_with_schema(benchmark::State& state) {
  auto message = std::make_shared<Bytes>(encode_tree(gpt_batch()));
  SchemaCache cache;
  for (auto _ : state) benchmark::DoNotOptimize(read_message(*message, message, cache));
}
BENCHMARK(read_with_schema);

void unflatten_tree(benchmark::State& state) {
  const Sample sample;
  for (auto _ : state) benchmark::DoNotOptimize(unflatten(sample.flat));
}
BENCHMARK(unflatten_tree);

// A tensor with stride 2: every second element of a row.
void copy_strided(benchmark::State& state) {
  const auto tensor = Tensor::zeros(dtypes::int64, {1 << 17});
  const TensorView every_second(dtypes::int64, {1 << 16}, {2}, tensor.bytes().data());
  auto to = Tensor::empty(dtypes::int64, {1 << 16});
  for (auto _ : state) {
    copy_elements(every_second, to.mutable_bytes().data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(every_second.byte_count()));
}
BENCHMARK(copy_strided);

// Encodes the items of a message between a pipeline's processes, and the same trees with the codec above. Both report
// items a second.
constexpr std::int64_t items_per_message = 128;

Tree small_dict() {
  return Tree::dict({{"text", "a line of a text file"}, {"id", 7}, {"weight", 0.5}, {"is_last", false}});
}

void pack_items(benchmark::State& state, const Tree& item) {
  const pipeline::TreeItemTraits traits;
  const std::vector<pipeline::Item> items(items_per_message, item);
  for (auto _ : state) benchmark::DoNotOptimize(traits.pack(items));
  state.SetItemsProcessed(state.iterations() * items_per_message);
}
BENCHMARK_CAPTURE(pack_items, int, Tree(7));
BENCHMARK_CAPTURE(pack_items, dict, small_dict());

void unpack_items(benchmark::State& state, const Tree& item) {
  const pipeline::TreeItemTraits traits;
  const auto packed = traits.pack(std::vector<pipeline::Item>(items_per_message, item));
  for (auto _ : state) benchmark::DoNotOptimize(traits.unpack(packed.head, {}, nullptr));
  state.SetItemsProcessed(state.iterations() * items_per_message);
}
BENCHMARK_CAPTURE(unpack_items, int, Tree(7));
BENCHMARK_CAPTURE(unpack_items, dict, small_dict());

void encode_item(benchmark::State& state, const Tree& item) {
  for (auto _ : state) benchmark::DoNotOptimize(encode_tree(item));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(encode_item, int, Tree(7));
BENCHMARK_CAPTURE(encode_item, dict, small_dict());

void decode_item(benchmark::State& state, const Tree& item) {
  const auto message = std::make_shared<Bytes>(encode_tree(item));
  SchemaCache cache;
  for (auto _ : state) benchmark::DoNotOptimize(unflatten(read_message(*message, message, cache).content));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(decode_item, int, Tree(7));
BENCHMARK_CAPTURE(decode_item, dict, small_dict());

}  // namespace
}  // namespace levada

BENCHMARK_MAIN();
