// Reads arbitrary bytes as a layout. An accepted layout must survive a round trip through JSON, and must be plannable
// on small meshes or be rejected.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/plan/plan.h"

namespace {

/// Returns a tensor for each rule, and a tensor and a plain value that no rule names.
std::vector<levada::Field> fields_for(const levada::Layout& layout) {
  std::vector<levada::Field> fields;
  for (const levada::Layout::Rule& rule : layout.rules) {
    if (fields.size() > 32) break;
    fields.push_back({rule.pattern, levada::dtypes::int32, {24, 24, 24}});
  }
  fields.push_back({"\x01 a tensor", levada::dtypes::float32, {24, 24}});
  fields.push_back({"\x01 a value", {}, {}});
  return fields;
}

void plan_on(const levada::Mesh& mesh, const levada::Layout& layout, levada::Divide divide) {
  try {
    layout.check(mesh);
    const auto fields = fields_for(layout);
    levada::FanOutOptions options;
    options.divide = divide;
    const auto plan = levada::plan_fan_out(fields, layout, mesh, options);
    std::size_t ranks = 0;
    for (const levada::Audience& audience : plan.audiences) ranks += audience.to.size();
    if (ranks != static_cast<std::size_t>(mesh.size())) std::abort();
  } catch (const levada::InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  levada::Layout layout;
  try {
    layout = levada::Layout::from_json({reinterpret_cast<const char*>(data), size});
  } catch (const levada::InvalidArgument&) {
    return 0;
  }
  if (levada::Layout::from_json(layout.to_json()) != layout) std::abort();
  static const levada::Mesh meshes[] = {levada::Mesh::parse(""), levada::Mesh::parse("dp=2,cp=2,tp=3,pp=3")};
  for (const levada::Mesh& mesh : meshes) {
    plan_on(mesh, layout, levada::Divide::deal);
    plan_on(mesh, layout, levada::Divide::split);
  }
  return 0;
}
