// Uses a part of every layer of the installed library: a mesh, a tree through the codec, a plan, and ranks as threads.
#include <cstdio>
#include <cstring>

#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/plan/plan.h"
#include "levada/tree/codec.h"

namespace {

bool planned() {
  const auto mesh = levada::Mesh::parse("dp=2,tp=2");
  const std::vector<levada::Field> fields = {{"tokens", levada::DType::parse("int64"), levada::Shape{8, 1024}}};
  const auto plan = levada::plan_fan_out(fields, levada::layouts::data_parallel(), mesh, {});
  return plan.bytes_delivered() == 4 * 8 * 1024 * 8 && plan.bytes_sent() * 2 == plan.bytes_delivered();
}

bool kept_by_the_codec() {
  const auto tree = levada::Tree::dict({{"step", levada::Tree(7)}, {"name", levada::Tree("levada")}});
  auto bytes = std::make_shared<levada::Bytes>(levada::encode_tree(tree));
  levada::SchemaCache schemas;
  const auto message = levada::read_message(*bytes, bytes, schemas);
  return levada::unflatten(message.content) == tree;
}

bool agreed_between_ranks() {
  std::atomic<int> right = 0;
  levada::inproc::run_ranks(3, [&](std::shared_ptr<levada::Engine> engine) {
    const auto mine = static_cast<std::byte>(engine->info().rank);
    const auto all =
        levada::agree(*engine, std::span(&mine, 1), levada::Deadline::after(std::chrono::seconds(30)), "consumer");
    if (all.size() == 3 && all[2].size() == 1 && all[2][0] == std::byte{2}) ++right;
  });
  return right == 3;
}

}  // namespace

int main() {
  const bool good = planned() && kept_by_the_codec() && agreed_between_ranks();
  std::puts(good ? "levada works from its install" : "levada does not work from its install");
  return good ? 0 : 1;
}
