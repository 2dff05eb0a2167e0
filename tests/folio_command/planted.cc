// A heap with planted leaks, pinned pages and known types, for the commands that follow pointers. Says in one line of
// JSON what it planted, and waits until its standard input ends. Addresses that nothing may point to are kept inverted.
//
//   planted leaks OBJECTS    that many live objects, reachable in many ways, and 1000 leaks among them
//   planted busy OBJECTS     the same, while threads move objects from one place to another
//   planted growing OBJECTS  for each line of input so many more of a kind that is kept, of one that is replaced, and
//                            100 leaks
//   planted pins PAGES       about as many pages that are mostly free, and what keeps them
//   planted mixed PAGES      the same with two kinds on each page
//   planted stale OBJECTS    an array whose end points to objects that are free
//   planted bulk OBJECTS BYTES   as many objects as large, of which each points to two others; and 1000 leaks
//   planted types            objects of known types
//   planted hidden           objects whose only pointers have something else in them
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace shapes {

struct Shape {
  virtual ~Shape() = default;
  Shape* next = nullptr;
  Shape* other = nullptr;
};
struct Circle : Shape {
  char room[24] = {};
};
template <class T>
struct Box : Shape {
  T room[8] = {};
};
struct Session : Shape {
  char* text = nullptr;
  char room[200] = {};
};
struct Second {
  virtual ~Second() = default;
};
struct Both : virtual Shape, Second {
  char room[40] = {};
};

}  // namespace shapes

namespace {

using shapes::Box, shapes::Both, shapes::Circle, shapes::Session, shapes::Shape;

void wait_for_end() {
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
}

// The pointer leaves no copy behind: neither in memory nor in a register that the compiler may keep.
struct Hidden {
  explicit Hidden(const void* object) : inverted(~reinterpret_cast<uintptr_t>(object)) {}
  uintptr_t inverted;
};

std::vector<Hidden> direct, indirect, lone;  // lone: in cycles

// To its end: the upper half of an old pointer that stayed in the last word would make an address of what is written
// below it.
void* touched(size_t size) {
  void* const object = malloc(size);
  memset(object, 1, malloc_usable_size(object));
  return object;
}

// One that no word leads to whose upper half is an old pointer's and whose lower half is a small number: such are left
// on stacks, and a large object is hit by them where it crosses a multiple of 4 GiB.
void* off_small_numbers(size_t size) {
  static void* others[100];
  for (void*& other : others) {
    void* const object = touched(size);
    const auto at = reinterpret_cast<uintptr_t>(object);
    if ((at - (1 << 16)) >> 32 == (at + size - 1) >> 32) return object;
    other = object;
  }
  abort();
}

struct Node {
  Node* next;
  uint64_t value;
};

// Ways in which live objects are reached.
Node* list;
std::vector<Circle*> circles;
std::map<uint64_t, std::string> names;
char* inside_only;                         // points to the middle of an object
char* volatile large_inside;               // of a large one
thread_local Session* volatile of_thread;  // TLS of main
void** mapped;                             // an mmap of the program's own
static Session* hash_table[4096];

uint64_t random_number() {
  static std::minstd_rand random(7);
  return random();
}

void make_live(size_t count) {
  const size_t each = count / 5;
  for (size_t i = 0; i < each; ++i) list = new Node{list, i};
  for (size_t i = 0; i < each; ++i) circles.push_back(new Circle);
  for (size_t i = 0; i < each / 2; ++i) names[random_number()] = std::string(40, 'x');  // two objects each
  for (size_t i = 0; i < each; ++i) {
    auto* const session = new Session;
    Session*& place = hash_table[random_number() % 4096];
    session->next = place;
    place = session;
    if (i % 16 == 0) session->text = static_cast<char*>(touched(i % 3000 + 1));
  }
  mapped = static_cast<void**>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t i = 0; i < 1000; ++i) mapped[i * 100] = touched(100 + i);
  inside_only = static_cast<char*>(touched(2000)) + 1234;
  large_inside = static_cast<char*>(touched(300000)) + 299000;
  of_thread = new Session;
  of_thread->next = new Circle;
}

// Leaks of all kinds: 1000 objects. Some were reachable until just now.
void plant() {
  for (int i = 0; i < 100; ++i) direct.emplace_back(touched(16 + i * 37 % 4000));
  for (int i = 0; i < 200; ++i) direct.emplace_back(new Circle);
  for (int i = 0; i < 100; ++i) {  // one holds three
    auto* const session = new Session;
    session->next = new Circle;
    session->next->next = new Circle;
    session->text = static_cast<char*>(touched(100));
    direct.emplace_back(session);
    for (const void* held : {static_cast<void*>(session->next), static_cast<void*>(session->next->next),
                             static_cast<void*>(session->text)}) {
      indirect.emplace_back(held);
    }
  }
  for (int i = 0; i < 50; ++i) {  // cycles of two; one of each counts as direct
    auto* const a = new Box<int>;
    a->next = new Box<int>;
    a->next->next = a;
    lone.emplace_back(a);
    lone.emplace_back(a->next);
  }
  for (int i = 0; i < 90; ++i) direct.emplace_back(off_small_numbers(40000 + i * 4096));
  for (int i = 0; i < 10; ++i) direct.emplace_back(off_small_numbers(size_t{9} << 20));
  Node* chain = nullptr;
  for (int i = 0; i < 100; ++i) {
    chain = new Node{chain, 1};
    (i == 99 ? direct : indirect).emplace_back(chain);
  }
}

// In a thread whose stack and registers are gone afterwards: nothing stays of the pointers that it had.
void aside(void (*work)()) {
  constexpr size_t kStack = size_t{1} << 20;
  void* const stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, kStack);
  pthread_t thread;
  const auto start = [](void* argument) -> void* {
    reinterpret_cast<void (*)()>(argument)();
    fflush(stdout);
    return nullptr;
  };
  if (pthread_create(&thread, &attributes, start, reinterpret_cast<void*>(work)) != 0) abort();
  pthread_join(thread, nullptr);
  memset(stack, 0, kStack);            // gcore writes it out as if it could be read
  mprotect(stack, kStack, PROT_NONE);  // not unmapped: an object at that address would be pointed to
}

std::vector<Hidden> on_stacks;
std::atomic<unsigned> waiting{0};

// Holds objects in its frame only.
void* sleeper(void*) {
  void* volatile held[8];
  for (auto& each : held) each = touched(500);
  for (auto& each : held) on_stacks.emplace_back(each);
  ++waiting;
  while (true) pause();
  return held[0];
}

void start_sleepers() {
  on_stacks.reserve(33);  // one more than they are: the end of an array that fills its object is the next one's address
  for (unsigned i = 0; i < 4; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, sleeper, nullptr) != 0) abort();
    while (waiting != i + 1) usleep(1000);
  }
}

void print(const char* name, const std::vector<Hidden>& objects, const char* end) {
  printf("\"%s\": [", name);
  for (size_t i = 0; i < objects.size(); ++i) printf("%s%zu", i == 0 ? "" : ", ", ~objects[i].inverted);
  printf("]%s", end);
}

void print_planted() {
  printf("{");
  print("direct", direct, ", ");
  print("indirect", indirect, ", ");
  print("lone", lone, ", ");
  print("on_stacks", on_stacks, ", ");
  printf("\"inside_only\": %zu}\n", reinterpret_cast<size_t>(inside_only));
}

int leaks(size_t count) {
  make_live(count);
  aside(plant);
  start_sleepers();
  aside(print_planted);
  wait_for_end();
  return 0;
}

std::atomic<bool> stop{false};
constexpr size_t kPlaces = 20000;
std::atomic<void*> places[kPlaces];

// Takes an object out of a place and puts it into another: for a moment only a register has it. With rests, or on two
// CPUs there were none for who looks.
void move_around(unsigned seed) {
  std::minstd_rand random(seed);
  for (unsigned n = 1; !stop.load(std::memory_order_relaxed); ++n) {
    if (n % 1024 == 0) usleep(100);
    void* object = places[random() % kPlaces].exchange(nullptr);
    if (random() % 4 == 0) {
      free(object);
      object = malloc(random() % 1000 + 1);
    }
    for (void* none = nullptr; !places[random() % kPlaces].compare_exchange_weak(none, object); none = nullptr) {
      if (object == nullptr) break;
    }
  }
}

int busy(size_t count) {
  make_live(count);
  for (size_t i = 0; i < kPlaces / 2; ++i) places[i] = malloc(100);
  aside(plant);
  std::vector<std::thread> movers;
  for (unsigned i = 0; i < 2; ++i) movers.emplace_back(move_around, i + 1);
  aside(print_planted);
  wait_for_end();
  _exit(0);
}

std::vector<Session*> kept;
std::vector<Circle*> replaced;

int growing(size_t count) {
  printf("{}\n");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
    if (c == '\n') continue;
    for (size_t i = 0; i < count; ++i) kept.push_back(new Session);
    for (Circle* old : replaced) delete old;
    replaced.clear();
    for (size_t i = 0; i < count; ++i) replaced.push_back(new Circle);
    aside([] {
      for (size_t i = 0; i < 100; ++i) direct.emplace_back(touched(3000));
    });
    if (write(1, "\n", 1) != 1) return 1;
  }
  return 0;
}

// What keeps pages: objects of four kinds, each alone in the midst of others that are freed.
std::vector<Session*> pinning_sessions;
std::vector<void*> pinning_buffers;
Node* pinning_list;
struct Owner : Shape {
  void* owned[1000] = {};
};
Owner* owner;

int pins(size_t pages) {
  owner = new Owner;
  std::vector<void*> others;
  const auto around = [&](size_t size) {  // so that a page of the bin has one that stays
    for (size_t i = 0; i < 4096 / size + 1; ++i) others.push_back(touched(size));
  };
  size_t sessions = 0, buffers = 0, nodes = 0, owned = 0;
  for (size_t i = 0; i < pages / 4; ++i, ++sessions) {
    pinning_sessions.push_back(new Session);
    around(sizeof(Session));
  }
  for (size_t i = 0; i < pages / 4; ++i, ++buffers) {
    pinning_buffers.push_back(touched(700));
    around(700);
  }
  for (size_t i = 0; i < pages / 4; ++i, ++nodes) {
    pinning_list = new Node{pinning_list, i};
    around(sizeof(Node));
  }
  for (size_t i = 0; i < pages / 4 && i < 1000; ++i, ++owned) {
    owner->owned[i] = touched(1100);
    around(1100);
  }
  for (void* other : others) free(other);
  std::vector<void*>().swap(others);
  malloc_trim(0);  // what caches hold keeps pages too
  printf("{\"sessions\": %zu, \"buffers\": %zu, \"nodes\": %zu, \"owned\": %zu, ", sessions, buffers, nodes, owned);
  const auto addresses = [](const char* name, const auto& objects, const char* end) {
    printf("\"%s\": [", name);
    for (size_t i = 0; i < objects.size(); ++i) {
      printf("%s%zu", i == 0 ? "" : ", ", reinterpret_cast<size_t>(objects[i]));
    }
    printf("]%s", end);
  };
  std::vector<Node*> list_nodes;
  for (Node* node = pinning_list; node != nullptr; node = node->next) list_nodes.push_back(node);
  addresses("session_at", pinning_sessions, ", ");
  addresses("buffer_at", pinning_buffers, ", ");
  addresses("node_at", list_nodes, ", ");
  addresses("owned_at", std::vector<void*>(owner->owned, owner->owned + owned), "}\n");
  std::vector<Node*>().swap(list_nodes);
  wait_for_end();
  return 0;
}

std::vector<void*> mixed_a, mixed_b;

std::vector<void*> with_an_end;

// An array that was longer: what it pointed to is free.
int stale(size_t count) {
  for (size_t i = 0; i < 2 * count; ++i) with_an_end.push_back(touched(200));
  for (size_t i = count; i < 2 * count; ++i) free(with_an_end[i]);
  with_an_end.resize(count);
  printf("{\"freed\": %zu}\n", count);
  wait_for_end();
  return 0;
}

// Two kinds of one size, in turn: a page has some of each.
int mixed(size_t pages) {
  std::vector<void*> others;
  for (size_t i = 0; i < pages * 4; ++i) {
    (i % 2 == 0 ? mixed_a : mixed_b).push_back(touched(300));
    for (int k = 0; k < 4; ++k) others.push_back(touched(300));
  }
  for (void* other : others) free(other);
  std::vector<void*>().swap(others);
  printf("{}\n");
  wait_for_end();
  return 0;
}

std::vector<std::unique_ptr<Shape>> typed;
std::vector<std::unique_ptr<Both>> both;
std::vector<void*> untyped;

int types() {
  for (int i = 0; i < 3000; ++i) typed.push_back(std::make_unique<Circle>());
  for (int i = 0; i < 2000; ++i) typed.push_back(std::make_unique<Box<int>>());
  for (int i = 0; i < 1000; ++i) typed.push_back(std::make_unique<Session>());
  for (int i = 0; i < 500; ++i) both.push_back(std::make_unique<Both>());
  for (int i = 0; i < 700; ++i) untyped.push_back(touched(5000));
  printf("{}\n");
  wait_for_end();
  return 0;
}

Node** volatile bulk_objects;

int bulk(size_t count, size_t size) {
  bulk_objects = static_cast<Node**>(malloc(count * sizeof(Node*)));
  for (size_t i = 0; i < count; ++i) {
    auto* const fresh = static_cast<char*>(touched(size));
    bulk_objects[i] = reinterpret_cast<Node*>(fresh);
  }
  // Shuffled, so that pointers lead to and fro.
  std::shuffle(bulk_objects, bulk_objects + count, std::minstd_rand(3));
  for (size_t i = 0; i < count; ++i) {
    auto** const words = reinterpret_cast<Node**>(bulk_objects[i]);
    words[0] = 2 * i + 1 < count ? bulk_objects[2 * i + 1] : nullptr;
    words[1] = 2 * i + 2 < count ? bulk_objects[2 * i + 2] : nullptr;
  }
  aside(plant);
  aside(print_planted);
  wait_for_end();
  return 0;
}

volatile uintptr_t tagged[300];

void hide() {
  for (int i = 0; i < 100; ++i) tagged[i] = reinterpret_cast<uintptr_t>(touched(600)) | uintptr_t{0x1234} << 48;
  for (int i = 100; i < 200; ++i) tagged[i] = reinterpret_cast<uintptr_t>(touched(600)) << 16 | 7;
  for (int i = 200; i < 300; ++i)
    tagged[i] = reinterpret_cast<uintptr_t>(touched(600)) ^ uintptr_t { 0x5555555555555555 };
}

int hidden() {
  aside(hide);
  printf("{}\n");
  wait_for_end();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t number = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1000;
  const std::string form = argc > 1 ? argv[1] : "";
  if (form == "leaks") return leaks(number);
  if (form == "busy") return busy(number);
  if (form == "growing") return growing(number);
  if (form == "pins") return pins(number);
  if (form == "mixed") return mixed(number);
  if (form == "stale") return stale(number);
  if (form == "bulk") return bulk(number, argc > 3 ? strtoul(argv[3], nullptr, 10) : 1000);
  if (form == "types") return types();
  if (form == "hidden") return hidden();
  fprintf(stderr, "usage: planted leaks|busy|growing|pins|mixed|stale|bulk|types|hidden [NUMBER [BYTES]]\n");
  return 2;
}
