#include "matrix/contenders.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <format>
#include <sstream>

#include "matrix/numpy_row.h"

namespace linkcpp {
namespace {

namespace fs = std::filesystem;

#if defined(__aarch64__)
constexpr bool kArmMachine = true;
#else
constexpr bool kArmMachine = false;
#endif
#if defined(__x86_64__)
constexpr bool kX86Machine = true;
#else
constexpr bool kX86Machine = false;
#endif

// GGML_BACKEND_PATH names our own plug-in; libgomp's threads spin after each region and starve one another.
const std::vector<std::pair<std::string, std::string>> kCleanEnvironment{{"GGML_BACKEND_PATH", ""},
                                                                         {"GOMP_SPINCOUNT", "1000"}};

struct ListedDevice {
  std::string name, description, library, features;
  bool is_gpu = false;
};

std::vector<ListedDevice> ParseList(const std::string& text) {
  std::vector<ListedDevice> devices;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string field; std::getline(parts, field, '\t');) fields.push_back(field);
    fields.resize(5);
    devices.push_back({fields[0], fields[1], fields[3], fields[4], fields[2] == "gpu"});
  }
  return devices;
}

bool OnPath(std::string_view program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access(std::format("{}/{}", folder, program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

class Finder {
 public:
  explicit Finder(const ContenderOptions& options) : options_(options) {}

  ChildCommand Command(std::vector<std::string> arguments) const {
    ChildCommand command{{options_.row_program}, kCleanEnvironment, options_.timeout_s};
    command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
    return command;
  }
  ChildCommand CpuCommand(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--threads", std::to_string(options_.n_threads)});
    return Command(std::move(arguments));
  }

  // A CPU variant among those in the folder of the variant that ggml chose itself.
  Contender Variant(std::string id, std::string name, bool right_machine, const fs::path& folder,
                    const std::vector<std::string>& variants) const {
    Contender made{
        .id = std::move(id), .name = std::move(name), .attempts = {}, .needs = {}, .forbids = {}, .missing = {}};
    if (!right_machine) {
      made.missing = "another kind of machine";
      return made;
    }
    for (const std::string& variant : variants) {
      const fs::path library = folder / std::format("libggml-cpu-{}.so", variant);
      if (fs::exists(library)) made.attempts.push_back(CpuCommand({"--backend", library.string()}));
    }
    if (made.attempts.empty()) {
      made.missing = std::format("ggml's variants are not in {}: none of {}", folder.string(), Joined(variants));
    }
    return made;
  }

  // The arm64 program under qemu-user: `cpu` is what the emulator says it is, so ggml chooses by itself.
  Contender Emulated(std::string id, std::string name, const std::string& cpu) const {
    Contender made{
        .id = std::move(id), .name = std::move(name), .attempts = {}, .needs = {}, .forbids = {}, .missing = {}};
    if (options_.arm64_program.empty() || !fs::exists(options_.arm64_program)) {
      made.missing = std::format("no arm64 program{}{}; `./dev build arm64` makes it",
                                 options_.arm64_program.empty() ? "" : " at ", options_.arm64_program);
    } else if (!OnPath("qemu-aarch64")) {
      made.missing = "no qemu-aarch64 (package qemu-user)";
    } else if (!fs::exists(fs::path(options_.arm64_root) / "usr/lib/aarch64-linux-gnu/libggml-base.so.0")) {
      made.missing = std::format("no arm64 ggml below {} (`./dev setup` puts it there)", options_.arm64_root);
    } else {
      ChildCommand command = Command({"--threads", std::to_string(options_.n_threads)});
      command.argv[0] = options_.arm64_program;
      command.argv.insert(command.argv.begin(), {"qemu-aarch64", "-L", options_.arm64_root, "-cpu", cpu});
      made.attempts.push_back(std::move(command));
    }
    return made;
  }

  static std::string Joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
  }

 private:
  const ContenderOptions& options_;
};

}  // namespace

Result<std::vector<Contender>> FindContenders(const ContenderOptions& options,
                                              const std::function<bool()>& keep_going) {
  const Finder finder(options);
  ChildCommand list = finder.Command({"--list"});
  ASSIGN_OR_RETURN(const ChildOutcome listed, RunChild(list, keep_going));
  if (listed.status != 0) {
    return Fail(FaultCode::kLocal, "{} --list failed: {}", options.row_program, listed.LastWords());
  }
  std::vector<ListedDevice> devices = ParseList(listed.out);
  const auto is_gpu = [](const ListedDevice& device) { return device.is_gpu; };
  std::vector<std::pair<std::string, std::string>> gpu_environment = kCleanEnvironment;
  if (std::ranges::none_of(devices, is_gpu) && std::getenv("GGML_VK_VISIBLE_DEVICES") == nullptr) {
    // ggml leaves software Vulkan (lavapipe) out unless it is named.
    list.environment.emplace_back("GGML_VK_VISIBLE_DEVICES", "0");
    gpu_environment = list.environment;
    ASSIGN_OR_RETURN(const ChildOutcome again, RunChild(list, keep_going));
    for (ListedDevice& device : ParseList(again.out)) {
      if (device.is_gpu) devices.push_back(std::move(device));
    }
  }

  std::vector<Contender> all;
  const auto cpu = std::ranges::find_if_not(devices, is_gpu);
  const fs::path folder = cpu == devices.end() ? fs::path() : fs::path(cpu->library).parent_path();
  if (cpu == devices.end()) {
    Contender own{
        .id = "cpu", .name = "CPU", .attempts = {}, .needs = {}, .forbids = {}, .missing = "ggml found no CPU backend"};
    all.push_back(std::move(own));
  }
  if (kX86Machine) {
    // The variant that ggml would choose first: what it has beyond AVX-512 is part of the kernel class.
    std::vector<std::string> wide{"sapphirerapids", "zen4",       "cooperlake", "icelake",
                                  "cascadelake",    "cannonlake", "skylakex"};
    Contender avx512 = finder.Variant("avx512", "x86 AVX-512", true, folder, wide);
    avx512.needs = {"AVX512"};
    Contender avx2 = finder.Variant("avx2", "x86 AVX2", true, folder, {"haswell"});
    avx2.needs = {"AVX2"};
    avx2.forbids = {"AVX512", "AVX_VNNI"};
    Contender x64 = finder.Variant("x64", "x86-64 baseline", true, folder, {"x64"});
    x64.forbids = {"AVX", "AVX2", "SSSE3", "FMA"};
    all.insert(all.end(), {avx512, avx2, x64});
  }
  const std::vector<std::string> plain{"armv8.0_1"}, dot{"armv8.2_2", "armv8.2_1"},
      matrix{"armv8.6_2", "armv8.6_1", "armv9.2_1", "armv9.2_2"};
  Contender neon = kArmMachine ? finder.Variant("neon", "arm64 NEON", true, folder, plain)
                               : finder.Emulated("neon", "arm64 NEON (qemu)", "cortex-a53");
  neon.needs = {"NEON"};
  neon.forbids = {"DOTPROD", "MATMUL_INT8", "SVE"};
  Contender dotprod = kArmMachine ? finder.Variant("dotprod", "arm64 dotprod", true, folder, dot)
                                  : finder.Emulated("dotprod", "arm64 dotprod (qemu)", "neoverse-n1");
  dotprod.needs = {"NEON", "DOTPROD"};
  dotprod.forbids = {"MATMUL_INT8", "SVE"};
  Contender i8mm = kArmMachine ? finder.Variant("i8mm", "arm64 dotprod+i8mm", true, folder, matrix)
                               : finder.Emulated("i8mm", "arm64 dotprod+i8mm (qemu)", "neoverse-n2");
  i8mm.needs = {"NEON", "DOTPROD", "MATMUL_INT8"};
  all.insert(all.end(), {neon, dotprod, i8mm});

  if (std::ranges::none_of(devices, is_gpu)) {
    all.push_back(
        {.id = "gpu",
         .name = "GPU",
         .kind = KernelKind::kGpu,
         .attempts = {},
         .needs = {},
         .forbids = {},
         .missing =
             "ggml finds no GPU device (Vulkan on a CPU: packages libggml0-backend-vulkan and mesa-vulkan-drivers)"});
  }
  for (const ListedDevice& device : devices) {
    if (!device.is_gpu) continue;
    ChildCommand command = finder.Command({"--device", device.name});
    command.environment = gpu_environment;
    std::string id = device.name;
    std::ranges::transform(id, id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    std::string name = device.description.substr(0, device.description.find(" ("));
    all.push_back({.id = id,
                   .name = std::format("{} {}", device.name, name),
                   .kind = KernelKind::kGpu,
                   .attempts = {command},
                   .needs = {},
                   .forbids = {},
                   .missing = {}});
  }
  Contender numpy{.id = "numpy",
                  .name = "numpy + gguf",
                  .kind = KernelKind::kNumpy,
                  .attempts = {},
                  .needs = {},
                  .forbids = {},
                  .missing = {}};
  if (OnPath("python3")) {
    numpy.attempts.push_back({{"python3", "-c", kNumpyRow}, kCleanEnvironment, options.timeout_s});
  } else {
    numpy.missing = "no python3";
  }
  all.push_back(std::move(numpy));
  for (const std::string& added : options.added) {
    const std::size_t equals = added.find('=');
    const std::string name = added.substr(0, equals);
    if (std::ranges::contains(all, name, &Contender::id)) {
      return Fail(FaultCode::kRefused, "--add {}: there is a backend of that name already; give it another", added);
    }
    all.push_back({.id = name,
                   .name = name,
                   .attempts = {finder.CpuCommand({"--backend", added.substr(equals + 1)})},
                   .needs = {},
                   .forbids = {},
                   .missing = {}});
  }
  return all;
}

std::string WrongFeatures(const Contender& contender, std::string_view features) {
  std::vector<std::string> there;
  std::istringstream words{std::string(features)};
  for (std::string word; words >> word;) {
    if (!word.ends_with("=0")) there.push_back(word.substr(0, word.find('=')));
  }
  const auto has = [&](const std::string& name) { return std::ranges::find(there, name) != there.end(); };
  for (const std::string& need : contender.needs) {
    if (!has(need)) return std::format("the backend that ran does not report {} (it reports: {})", need, features);
  }
  for (const std::string& forbidden : contender.forbids) {
    if (has(forbidden)) return std::format("the backend that ran reports {} (it reports: {})", forbidden, features);
  }
  return "";
}

}  // namespace linkcpp
