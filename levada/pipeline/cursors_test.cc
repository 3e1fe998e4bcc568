// Wherever a pipeline is stopped, it resumes with exactly the next item.
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "levada/pipeline/open_graph_testing.h"
#include "levada/tree/codec.h"

namespace levada::pipeline::testing {
namespace {

/// Returns the cursor as another process would receive it.
Cursor carried(const Cursor& cursor) {
  const auto message = std::make_shared<Bytes>(encode_tree(cursor));
  SchemaCache cache;
  return unflatten(read_message(*message, message, cache).content);
}

/// Saves after each item, and expects each cursor to yield the same following items; sometimes saves again in between.
void expect_resumable(const Graph& graph, const std::vector<Tree>& all) {
  Opened whole(graph);
  for (std::size_t i = 0; i <= all.size(); ++i) {
    const auto cursor = whole.iterator().save();
    Opened rest(graph);
    rest.iterator().restore(carried(cursor));
    const auto some = std::min<std::size_t>(all.size() - i, i % 3);
    auto items = rest.items(some);
    Opened last(graph);
    last.iterator().restore(rest.iterator().save());
    for (auto& item : last.items()) items.push_back(std::move(item));
    ASSERT_EQ(items.size(), all.size() - i) << "at item " << i << " of " << all.size();
    ASSERT_TRUE(std::equal(items.begin(), items.end(), all.end() - static_cast<std::ptrdiff_t>(items.size()))) << i;
    const auto item = whole.iterator().next();
    ASSERT_EQ(item.has_value(), i < all.size());
  }
}
void expect_resumable(const Graph& graph) {
  expect_resumable(graph, items_of(graph));
}

/// Makes documents of up to 39 tokens, longer than some rows; often of one or none.
Map as_document() {
  return {[](const Item& item) -> Item {
    const auto hash = std::hash<std::string>()(std::get<Tree>(item).to_string());
    const auto length = static_cast<std::int64_t>(hash % 7 == 0 ? hash / 7 % 40 : hash / 7 % 8);
    auto tokens = Tensor::empty(dtypes::int64, {length});
    for (std::int64_t i = 0; auto& token : tokens.mutable_as<std::int64_t>()) {
      token = static_cast<std::int64_t>(hash % 1000) * 100 + i++;
    }
    return Tree(std::move(tokens));
  }};
}

std::vector<Pack> some_packs() {
  return {{.sequence = 9},
          {.sequence = 3, .partial = PartialRow::drop},
          {.sequence = 9, .method = Packing::best_fit, .buffer = 5},
          {.sequence = 16, .method = Packing::best_fit, .buffer = 1, .pad_to = 4},
          {.sequence = 12, .method = Packing::best_fit, .buffer = 1000, .max_documents = 2}};
}

BucketBatch buckets(std::optional<std::int64_t> size, std::optional<std::int64_t> max_tokens = {},
                    bool drop_last = false) {
  const auto length = [](const Item& item) {
    return static_cast<std::int64_t>(std::get<Tree>(item).to_string().size()) * 7 % 31;
  };
  return {length, {5, 10, 20}, size, max_tokens, drop_last};
}

TEST(Cursors, ResumeInEveryStage) {
  for (const std::int64_t size : {0, 1, 2, 101}) {
    const auto source = first_numbers(size);
    expect_resumable(source);
    expect_resumable(source.then(mapped([](auto i) { return 2 * i; })).then(kept([](auto i) { return i % 3 != 0; })));
    expect_resumable(source.then(several(4)));
    expect_resumable(source.then(several(4)).then(Skip{7}).then(several(3)));
    expect_resumable(source.then(Batch{3}));
    expect_resumable(source.then(Batch{3}).then(Unbatch{}));
    expect_resumable(source.then(Skip{1}).then(Take{7}));
    expect_resumable(source.then(Shuffle{10}));
    expect_resumable(source.then(Shuffle{1000}).then(Shuffle{3}));
    expect_resumable(source.then(mapped([](auto i) { return i; })).then(Shard{}));
    for (const auto& pack : some_packs()) {
      expect_resumable(source.then(as_document()).then(pack));
      expect_resumable(source.then(Shuffle{5}).then(as_document()).then(Prefetch{2}).then(pack).then(Batch{2}));
    }
    expect_resumable(source.then(Prefetch{1}));
    expect_resumable(source.then(Shuffle{5}).then(Prefetch{10}).then(Batch{2}).then(Prefetch{3}));
    expect_resumable(source.then(Shuffle{5}).then(Repeat{3}));
    expect_resumable(source.then(Repeat{}).then(Take{30}));
    expect_resumable(Graph::join(Zip{}, {source.then(Shuffle{5}), first_numbers(size).then(several(3))}));
    const auto inputs = {source.then(Shuffle{5}), first_numbers(size / 2).then(several(3)), first_numbers(7)};
    expect_resumable(Graph::join(Concat{}, inputs));
    for (const auto stop : {StopAt::first_end, StopAt::last_end}) {
      expect_resumable(Graph::join(Interleave{.weights = {}, .stop = stop}, inputs));
      expect_resumable(Graph::join(Interleave{.weights = {5, 1, 0.1}, .stop = stop}, inputs));
    }
    std::vector<Graph> repeated;
    for (const auto& input : inputs) repeated.push_back(input.then(Repeat{}));
    expect_resumable(Graph::join(Interleave{.weights = {5, 2, 3}, .stop = StopAt::full_cycle}, repeated));
    expect_resumable(source.then(buckets(4)).then(Unbatch{}));
    expect_resumable(source.then(Shuffle{5}).then(buckets({}, 40, true)).then(Batch{2}));
    const Map triple{
        [](const Item& item) -> Item { return Tree(3 * std::get<std::int64_t>(std::get<Tree>(item).leaf())); }};
    expect_resumable(source.then(Map{triple.function, OnError::raise, 3}));
    const auto branches = source.then(several(3)).fork(3, 20);
    expect_resumable(Graph::join(Zip{}, {branches[0].then(Skip{5}), branches[1], branches[2].then(Shuffle{7})}));
  }
}

/// A random graph with any of the stages, branches and joints, and few enough items.
class AnyGraph {
 public:
  explicit AnyGraph(std::uint64_t seed) : random_(seed) {}

  Graph make(int joints = 2) {
    if (joints == 0 || draw(3) == 0) {
      return row(first_numbers(draw(4) == 0 ? draw(3) : 40));
    }
    if (draw(2) == 0) return row(Graph::join(joint(), {make(joints - 1), make(0)}));
    auto branches = make(joints - 1).fork(2 + draw(2), 1000);
    for (auto& branch : branches) branch = row(branch);
    return row(Graph::join(Zip{}, branches));
  }

 private:
  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  Operation joint() {
    switch (draw(4)) {
      case 0: return Concat{};
      case 1: return Interleave{{}, StopAt::last_end};
      case 2: return Interleave{{1.0 + draw(3), 2}, StopAt::first_end};
      default: return Zip{};
    }
  }

  Graph row(Graph graph) {
    for (int count = draw(4); count > 0; --count) graph = stage(graph);
    return graph;
  }

  Graph stage(const Graph& graph) {
    switch (draw(13)) {
      case 0:
        return graph.then(Map{[](const Item& item) -> Item {
                                return Tree::list({std::get<Tree>(item), 1});
                              },
                              OnError::raise, draw(3)});
      case 1:
        return graph.then(Filter{[](const Item& item) { return std::get<Tree>(item).to_string().size() % 3 != 0; }});
      case 2:
        return graph.then(FlatMap{[](const Item& item) {
          return trees({std::get<Tree>(item), 7, std::get<Tree>(item)})->open({}, {});
        }});
      case 3: return graph.then(Batch{1 + draw(3)}).then(Unbatch{});
      case 4: return graph.then(Batch{1 + draw(3), draw(2) == 0});
      case 5: return graph.then(Shuffle{1 + draw(12)});
      case 6: return graph.then(Take{draw(60)});
      case 7: return graph.then(Skip{draw(5)});
      case 8: return graph.then(Repeat{1 + draw(2)});
      case 9: return graph.then(Prefetch{1 + draw(3)});
      case 10: return graph.then(as_document()).then(some_packs()[static_cast<std::size_t>(draw(5))]);
      case 11: return graph.then(buckets(1 + draw(4), 50, draw(2) == 0)).then(Unbatch{});
      default: return graph.then(Dispatch{});
    }
  }

  std::mt19937_64 random_;
};

TEST(Cursors, ResumeInAHundredRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto graph = AnyGraph(seed).make();
    const auto all = items_of(graph);
    ASSERT_TRUE(items_of(graph) == all) << "graph " << seed;
    if (all.size() > 300) continue;
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(expect_resumable(graph, all));
  }
}

TEST(Cursors, FailuresSurfaceAtTheirItemsInManyGraphs) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    auto calls = std::make_shared<std::int64_t>(0);
    const auto fails_at = std::make_shared<std::int64_t>(-1);
    const auto fuse = Map{[=](Item item) {
      if ((*calls)++ == *fails_at) throw std::runtime_error("blown");
      return item;
    }};
    const auto graph = AnyGraph(seed).make(0).then(fuse, "fuse").then(Batch{2}).then(Prefetch{2}).then(Unbatch{});
    const auto all = items_of(graph);
    const auto called = *calls;
    for (*fails_at = 0; *fails_at < called; ++*fails_at) {
      *calls = 0;
      Opened opened(graph);
      std::vector<Tree> items;
      const auto failure = failure_of([&] {
        while (auto item = opened.iterator().next()) items.push_back(std::get<Tree>(*item));
      });
      ASSERT_EQ(failure.stage, "fuse");
      ASSERT_EQ(failure.item, *fails_at);
      ASSERT_TRUE(items == std::vector<Tree>(all.begin(), all.begin() + *fails_at / 2 * 2));
    }
  }
}

TEST(Cursors, AreSmallAndFlatForLongGraphs) {
  auto graph = first_numbers(1000000);
  for (int i = 0; i < 100; ++i) graph = graph.then(mapped([](auto n) { return n; }));
  Opened opened(graph.then(Shuffle{1000}));
  opened.items(5000);
  EXPECT_LT(encode_tree(opened.iterator().save()).size(), 40000u);
}

TEST(Cursors, OfAShuffleHoldNoItems) {
  const auto large = [](const Item& item) -> Item {
    return Tree(std::string(10000, static_cast<char>('a' + number_in(item) % 26)));
  };
  Opened opened(first_numbers(10000).then(Map{large}).then(Shuffle{100}));
  opened.items(1000);
  EXPECT_LT(encode_tree(opened.iterator().save()).size(), 3000u);
}

TEST(Cursors, OfAPackHoldNoDocuments) {
  const auto large = [](const Item& item) -> Item { return Tensor::zeros(dtypes::int64, {number_in(item) % 900}); };
  for (const auto method : {Packing::cut, Packing::best_fit}) {
    Opened opened(first_numbers(10000).then(Map{large}).then(Pack{.sequence = 1000, .method = method, .buffer = 100}));
    opened.items(100);
    EXPECT_LT(encode_tree(opened.iterator().save()).size(), 3000u);
  }
}

TEST(Cursors, DoNotRepeatFailedItems) {
  const auto graph =
      first_numbers(10).then(mapped([](auto i) { return i == 4 ? throw std::runtime_error("bad") : i; }));
  Opened opened(graph);
  failure_of([&] { opened.items(); });
  Opened again(graph);
  again.iterator().restore(opened.iterator().save());
  EXPECT_THAT(again.numbers(), ::testing::ElementsAre(5, 6, 7, 8, 9));
}

TEST(Cursors, OfAnotherGraphAreRejected) {
  const auto graph = first_numbers(10).then(Shuffle{3}).then(Batch{2});
  const auto refuses = [&](const Cursor& cursor) {
    EXPECT_THROW(Opened(graph).iterator().restore(cursor), InvalidArgument);
  };
  refuses(Tree());
  refuses(Tree::list({}));
  refuses(Tree::dict({{"stage", "batch"}}));
  refuses(Opened(first_numbers(10)).iterator().save());
  refuses(Opened(first_numbers(10).then(Batch{2})).iterator().save());
  refuses(Opened(first_numbers(10).then(Shuffle{30}).then(Batch{2}).then(Batch{2})).iterator().save());
}

TEST(Cursors, OfAPackRequireDocumentsOfTheSameLengths) {
  const auto documents = [](std::int64_t length) {
    return Graph::source(trees(std::vector<Tree>(20, Tree(Tensor::zeros(dtypes::int64, {length})))));
  };
  const auto resumed_items = [&](const Pack& pack, std::int64_t length) {
    Opened opened(documents(29).then(pack));
    opened.items(3);
    Opened again(documents(length).then(pack));
    again.iterator().restore(opened.iterator().save());
    return again.items().size();
  };
  for (const auto method : {Packing::cut, Packing::best_fit}) {
    const Pack pack{.sequence = 6, .method = method, .buffer = 4};
    EXPECT_GT(resumed_items(pack, 29), 80u);
    EXPECT_THROW(resumed_items(pack, 7), StageFailed);
    EXPECT_THROW(resumed_items(pack, 0), StageFailed);
  }
}

/// Returns all trees that differ from it in one leaf.
std::vector<Tree> changed(const Tree& tree) {
  std::vector<Tree> all;
  if (tree.is_leaf()) {
    for (const Tree& other : {Tree(), Tree(-1), Tree(3), Tree(1 << 30), Tree(std::numeric_limits<std::int64_t>::max()),
                              Tree(std::string("x")), Tree(Bytes(3)), Tree(Bytes(8, std::byte{255})), Tree(true),
                              Tree::list({}), Tree::dict({})}) {
      all.push_back(other);
    }
    return all;
  }
  for (std::size_t i = 0; i < tree.container().children.size(); ++i) {
    for (auto& child : changed(tree.container().children[i])) {
      auto container = tree.container();
      container.children[i] = std::move(child);
      all.emplace_back(std::move(container));
    }
    auto without = tree.container();
    without.children.erase(without.children.begin() + static_cast<std::ptrdiff_t>(i));
    if (!without.keys.empty()) without.keys.erase(without.keys.begin() + static_cast<std::ptrdiff_t>(i));
    all.emplace_back(std::move(without));
  }
  return all;
}

void expect_lies_found_out(const Graph& graph, const Cursor& cursor) {
  for (const auto& lie : changed(cursor)) {
    try {
      Opened again(graph);
      again.iterator().restore(lie);
      EXPECT_LE(again.items().size(), 100u);
    } catch (const InvalidArgument&) {
    } catch (const StageFailed& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << error.what();
    }
  }
}

TEST(Cursors, AreRejectedOrEndIfChanged) {
  const auto branches = first_numbers(40).then(Shuffle{3}).then(several(3)).fork(2, 5);
  const auto graph = Graph::join(Zip{}, {branches[0].then(Prefetch{2}), branches[1].then(Batch{1}).then(Unbatch{})})
                         .then(Batch{2})
                         .then(Repeat{2});
  Opened opened(graph);
  opened.items(7);
  expect_lies_found_out(graph, opened.iterator().save());
}

TEST(Cursors, OfPacksAreRejectedOrEndIfChanged) {
  for (const auto& pack : some_packs()) {
    const auto graph = first_numbers(40).then(as_document()).then(pack);
    for (const std::size_t items : {1, 3}) {
      Opened opened(graph);
      opened.items(items);
      expect_lies_found_out(graph, opened.iterator().save());
    }
  }
}

}  // namespace
}  // namespace levada::pipeline::testing
