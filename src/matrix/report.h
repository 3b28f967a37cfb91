// A finished matrix: what --json prints, and what the table and the picture are made from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "matrix/compare.h"

namespace linkcpp {

struct BackendReport {
  std::string id, name;
  std::string state;   // "ran" | "skipped": not to be had here | "failed": it ran and broke, or ran as something else
  std::string reason;  // unless it ran
  std::string kernel_class, device, features;
  double seconds = 0;        // of the process, loading included; of a worker: from asking to its last answer
  std::string node_id = {};  // of a worker of a swarm
};

struct OracleCell {
  std::string backend;
  std::string fault;     // not empty: it refused this group, and why; then the figures mean nothing
  bool inside = false;   // its bounds, in every passage
  OracleFigures by_row;  // the passages of job.h
  OracleFigures shuffled;
  OracleFigures one_batch;
  std::optional<PairFigures> itself;  // by row against a random order and company
};

struct PairCell {
  std::string a, b;
  bool same_rows = false;   // both turn rows into the same formats
  bool same_class = false;  // the same kernel class
  PairFigures figures;
  bool contradiction = false;  // the same kernel class, of a CPU, and other bits: one of them is not what it says
};

struct GroupReport {
  std::string name, types, rows;
  std::uint64_t pairs = 0;
  std::vector<OracleCell> oracle;  // backends that ran, in order
  std::vector<PairCell> between;   // a before b in that order; those without a fault

  bool Inside() const;  // every backend that answered, and no contradiction
};

struct MatrixReport {
  std::string machine;  // "x86_64"
  double seconds = 0;
  bool inside = false;  // every backend that ran, in every group
  std::vector<BackendReport> backends;
  std::vector<GroupReport> groups;
};

// "0.9998690", and where seven digits would be nines "1-4e-09": how far from one.
std::string CosineText(double cosine);

// A largest |Δ| as a share of its bound: "0.892"; what is far outside needs no digits: "3e+05".
std::string BoundShare(double share);

// Plain text for a terminal, lines ending in newlines.
std::string MatrixTable(const MatrixReport& report);

// A picture of it: one coloured square of cells a group, readable on light and dark pages. UTF-8.
std::string MatrixSvg(const MatrixReport& report);

}  // namespace linkcpp
