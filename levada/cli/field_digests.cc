#include "levada/cli/field_digests.h"

#include <algorithm>

#include "levada/tree/codec.h"

namespace levada::cli {

void FieldDigests::add(const FlatTree& batch) {
  const auto specs = batch.schema.leaves();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&batch.leaves[i]);
    if (tensor != nullptr) add_to_digest(field_at(specs[i].path, *tensor).digest, *tensor);
  }
}

FieldDigests::Field& FieldDigests::field_at(const std::string& path, const Tensor& tensor) {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.path == path; });
  if (found != fields_.end()) return *found;
  return fields_.emplace_back(Field{path, tensor.dtype(), tensor.shape(), {}});
}

std::vector<report::FieldReport> FieldDigests::fields() const {
  std::vector<report::FieldReport> reports;
  for (const auto& field : fields_) {
    reports.push_back({field.path, field.digest.hex(), field.dtype.name(), {field.shape.begin(), field.shape.end()}});
  }
  return reports;
}

}  // namespace levada::cli
