#include "levada/cli/job.h"

#include <fmt/format.h>

#include <limits>
#include <sstream>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/small_file.h"

namespace levada::cli {
namespace {

Layout layout_of(const JobArguments& arguments) {
  if (arguments.layout == "gpt") return layouts::gpt({.attention_mask = arguments.attention_mask});
  if (arguments.layout == "data_parallel") return layouts::data_parallel();
  if (arguments.layout.find_first_of("./") == std::string::npos) {
    throw InvalidArgument(
        fmt::format("unknown layout {}; it must be gpt, data_parallel or a file such as mine.json", arguments.layout));
  }
  const auto text = read_small_file("layout", arguments.layout);
  try {
    return Layout::from_json(text);
  } catch (const InvalidArgument& error) {
    throw_unusable_file("layout", arguments.layout, error.what());
  }
}

/// `samples` is the number per batch as the corpus makes it.
std::vector<Field> corpus_fields(const JobArguments& arguments, std::int64_t samples) {
  const Shape shape = {samples, arguments.sequence};
  if (arguments.dtype != "int64" && arguments.dtype != "int32") {
    throw InvalidArgument(fmt::format("--dtype is {}; it must be int64 or int32", printable(arguments.dtype)));
  }
  const auto ids = DType::parse(arguments.dtype);
  std::vector<Field> fields = {{"tokens", ids, shape},
                               {"labels", ids, shape},
                               {"loss_mask", dtypes::float32, shape},
                               {"position_ids", ids, shape}};
  if (arguments.attention_mask) {
    fields.push_back({"attention_mask", dtypes::boolean, {samples, 1, arguments.sequence, arguments.sequence}});
  }
  return fields;
}

void check_count(std::string_view option, std::int64_t value, std::int64_t max_value) {
  if (value >= 1 && value <= max_value) return;
  throw InvalidArgument(fmt::format("{} is {}; it must be from 1 to {}", option, value, max_value));
}

std::optional<Mesh::Names> names_in(const std::string& list) {
  if (list.empty()) return {};
  Mesh::Names names;
  std::istringstream words(list);
  for (std::string name; std::getline(words, name, ',');) names.push_back(name);
  return names;
}

Mesh mesh_of(const JobArguments& arguments, std::optional<int> world_size) {
  const auto& text = arguments.mesh;
  if (text.empty() && arguments.data_axes.empty()) {
    return world_size.value_or(1) == 1 ? Mesh() : Mesh({{"dp", *world_size}});
  }
  auto mesh = Mesh::parse(text, names_in(arguments.data_axes));
  if (world_size && mesh.size() != *world_size) {
    throw InvalidArgument(
        fmt::format("the mesh {} has {} ranks, but this job has {}; use a mesh whose sizes multiply to {}",
                    mesh.to_string(), mesh.size(), *world_size, *world_size));
  }
  return mesh;
}

}  // namespace

void add_job_options(CLI::App& command, JobArguments& arguments) {
  command.option_defaults()->group("Ranks");
  command.add_option("--mesh", arguments.mesh, "Named axes of ranks, the last varying fastest [the job's ranks as dp]")
      ->type_name("dp=2,tp=2");
  command.add_option("--data-axes", arguments.data_axes, "Axes along which batches differ [dp, dp_shard, ... by name]")
      ->type_name("AXES");
  add_option(command, "--batch", arguments.batch, "N", "Samples per data-parallel rank per step");
  add_option(command, "--seq", arguments.sequence, "N", "Tokens per sample");
  add_option(command, "--readers", arguments.readers, "WHO",
             "Ranks that read: one, all, host, spread, or axes such as dp,pp");
  add_option(command, "--divide", arguments.divide, "HOW",
             "Division over the data axes: deal whole batches, or split a global one along dim 0");
  add_option(command, "--layout", arguments.layout, "gpt|FILE.json",
             "Placement of each field: gpt, data_parallel or a file");
  command.add_flag("--attention-mask", arguments.attention_mask, "Add a bool attention mask [batch, 1, seq, seq]");
  add_option(command, "--dtype", arguments.dtype, "TYPE", "Type of tokens, labels and position_ids: int64 or int32");
}

Job parse_job(const JobArguments& arguments, std::optional<int> world_size) {
  constexpr std::int64_t max_value = std::numeric_limits<std::int32_t>::max();
  check_count("--batch", arguments.batch, max_value);
  check_count("--seq", arguments.sequence, max_value);
  Job job{mesh_of(arguments, world_size),
          layout_of(arguments),
          Readers::parse(arguments.readers),
          parse_divide(arguments.divide, "--divide"),
          {}};
  const std::int64_t batches = job.divide == Divide::split ? job.mesh.data_size() : 1;
  job.fields = corpus_fields(arguments, arguments.batch * batches);
  static_cast<void>(job.plan());
  return job;
}

}  // namespace levada::cli
