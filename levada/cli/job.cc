#include "levada/cli/job.h"

#include <fmt/format.h>

#include <limits>

#include "levada/base/error.h"
#include "levada/cli/small_file.h"

namespace levada::cli {
namespace {

Layout layout_of(const JobArguments& arguments) {
  if (arguments.layout == "gpt") return layouts::gpt({.attention_mask = arguments.attention_mask});
  if (arguments.layout == "data_parallel") return layouts::data_parallel();
  if (arguments.layout.find_first_of("./") == std::string::npos) {
    throw InvalidArgument(fmt::format(
        "there is no layout {}; there are gpt, data_parallel, and files such as mine.json", arguments.layout));
  }
  const auto text = read_small_file("layout", arguments.layout);
  try {
    return Layout::from_json(text);
  } catch (const InvalidArgument& error) {
    refuse_file("layout", arguments.layout, error.what());
  }
}

Divide divide_of(const JobArguments& arguments) {
  if (arguments.divide == "deal") return Divide::deal;
  if (arguments.divide == "split") return Divide::split;
  throw InvalidArgument(
      fmt::format("--divide is {}; it must be deal (whole batches) or split (a global batch)", arguments.divide));
}

/// `samples`: of one batch as the corpus makes it.
std::vector<Field> corpus_fields(const JobArguments& arguments, std::int64_t samples) {
  const Shape shape = {samples, arguments.sequence};
  std::vector<Field> fields = {{"tokens", dtypes::int64, shape},
                               {"labels", dtypes::int64, shape},
                               {"loss_mask", dtypes::float32, shape},
                               {"position_ids", dtypes::int64, shape}};
  if (arguments.attention_mask) {
    fields.push_back({"attention_mask", dtypes::boolean, {samples, 1, arguments.sequence, arguments.sequence}});
  }
  return fields;
}

void check_count(std::string_view option, std::int64_t value, std::int64_t largest) {
  if (value >= 1 && value <= largest) return;
  throw InvalidArgument(fmt::format("{} is {}; it must be from 1 to {}", option, value, largest));
}

Mesh mesh_of(const std::string& text, std::optional<int> world_size) {
  if (text.empty()) return world_size.value_or(1) == 1 ? Mesh() : Mesh({{"dp", *world_size}});
  auto mesh = Mesh::parse(text);
  if (world_size && mesh.size() != *world_size) {
    throw InvalidArgument(
        fmt::format("the mesh {} has {} ranks, but this job has {}; give a mesh whose sizes multiply to {}",
                    mesh.to_string(), mesh.size(), *world_size, *world_size));
  }
  return mesh;
}

}  // namespace

void add_job_options(CLI::App& command, JobArguments& arguments) {
  command.add_option("--mesh", arguments.mesh, "Ranks as named axes, the last varies fastest [the job's ranks as dp]")
      ->type_name("dp=2,tp=2");
  command.add_option("--batch", arguments.batch, "Samples a data-parallel rank and step")
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--seq", arguments.sequence, "Tokens a sample")->type_name("N")->capture_default_str();
  command.add_option("--readers", arguments.readers, "Who reads: one, all, host, or axes such as dp,pp")
      ->type_name("WHO")
      ->capture_default_str();
  command.add_option("--divide", arguments.divide, "deal whole batches along dp, or split a global one along dim 0")
      ->type_name("HOW")
      ->capture_default_str();
  command.add_option("--layout", arguments.layout, "Which rank gets what: gpt, data_parallel or a file")
      ->type_name("gpt|FILE.json")
      ->capture_default_str();
  command.add_flag("--attention-mask", arguments.attention_mask, "Make a bool mask [batch, 1, seq, seq] too");
}

Job parse_job(const JobArguments& arguments, std::optional<int> world_size) {
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  check_count("--batch", arguments.batch, largest);
  check_count("--seq", arguments.sequence, largest);
  Job job{mesh_of(arguments.mesh, world_size),
          layout_of(arguments),
          Readers::parse(arguments.readers),
          divide_of(arguments),
          {}};
  const std::int64_t batches = job.divide == Divide::split ? job.mesh.axis_size("dp") : 1;
  job.fields = corpus_fields(arguments, arguments.batch * batches);
  static_cast<void>(job.plan());
  return job;
}

}  // namespace levada::cli
