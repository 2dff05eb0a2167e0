"""What the programs of cases.py work on: scripts and data, the same at every run."""

PYTHON = rb"""
import collections, hashlib, json, pickle, re, sqlite3, threading, zlib

rows = [{"id": i, "name": f"name {i * 7919 % 10007}", "tags": [str(i % k) for k in range(1, 9)], "x": i / 7}
        for i in range(20000)]
text = json.dumps(rows)
print(len(text), hashlib.sha256(text.encode()).hexdigest())
assert json.loads(text) == rows and pickle.loads(pickle.dumps(rows)) == rows
words = collections.Counter(re.findall(r"[a-z]+|\d+", text))
print(words.most_common(20), len(words))
packed = zlib.compress(text.encode(), 6)
print(len(packed), zlib.decompress(packed) == text.encode())
db = sqlite3.connect(":memory:")
db.execute("create table t(id integer primary key, name text, x real)")
db.executemany("insert into t values(:id, :name, :x)", rows)
db.execute("create index by_name on t(name)")
print(db.execute("select count(distinct name), sum(x), max(name) from t where id % 3 = 1").fetchall())
results = {}
def work(k):
    d = {}
    for i in range(30000):
        d[(i * k) % 5003] = "v" * (i % 300) + str(i)
    results[k] = hashlib.md5("".join(d[j] for j in sorted(d)).encode()).hexdigest()
threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 7)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(results.items()))
grid = [[(i * j) % 97 for j in range(300)] for i in range(300)]
print(sum(map(sum, zip(*grid))), len(repr(grid)), int("7" * 4000) % 10**9)
data = bytearray()
for i in range(2000): data += bytes([i % 256]) * (i % 3000)
print(len(data), hashlib.sha1(data).hexdigest())
"""

SQLITE = rb"""
create table t(id integer primary key, k int, name text, body text);
insert into t with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
  select i, i * 7919 % 10007, 'name ' || (i * 31 % 997), substr(hex(i * 2654435761), 1, 12) ||
    printf('%.*c', i % 200, 'x') from n;
create index by_k on t(k, name);
create index by_name on t(name);
select count(*), sum(k), sum(length(body)) from t;
select name, count(*), avg(k) from t group by name order by 2 desc, 1 limit 20;
select a.id, b.id from t a join t b on a.k = b.k and a.id < b.id where a.name = 'name 13' order by 1, 2 limit 50;
update t set body = body || body where id % 5 = 0;
delete from t where id % 7 = 3;
select group_concat(name, ',') from (select distinct name from t order by name limit 200);
select sum(length(j)) from (select json_group_array(json_object('id', id, 'name', name)) as j from t group by k);
select k, id, row_number() over (partition by k order by body) from t where k < 20 order by 1, 3;
with recursive f(a, b, n) as (select 1, 1, 1 union all select b, a + b, n + 1 from f where n < 60) select max(a) from f;
vacuum;
pragma integrity_check;
"""

PERL = rb"""
use strict; use warnings;
my %h; my @lines;
for my $i (1 .. 150000) {
  my $k = ($i * 7919) % 20011;
  $h{"key$k"} .= chr(65 + $i % 26);
  push @lines, "line $i " . "x" x ($i % 120);
}
print scalar(keys %h), " ", join(",", map { "$_=" . length($h{$_}) } (sort keys %h)[0 .. 50]), "\n";
my $text = join("\n", @lines); my $n = 0;
$n++ while $text =~ /line (\d+5) (x{10,20})\b/g;
(my $copy = $text) =~ s/x{30,}/<long>/g;
print "$n ", length($copy), "\n";
my @sorted = sort { length($a) <=> length($b) || $a cmp $b } @lines;
print join("|", @sorted[0 .. 20]), "\n";
my @tree;
for my $i (0 .. 30000) { $tree[$i] = { id => $i, kids => [map { $i * 2 + $_ } 0 .. $i % 5], name => "n$i" }; }
my $sum = 0; $sum += scalar(@{$_->{kids}}) for @tree; @tree = (); print "$sum\n";
my $packed = pack("N*", map { $_ * 2654435761 % 4294967296 } 1 .. 100000); print unpack("%32N*", $packed), "\n";
"""

NODE = rb"""
const crypto = require('crypto'), zlib = require('zlib');
const row = (_, i) => ({id: i, name: 'name ' + (i * 7919 % 10007), list: [i, i % 7, i / 3]});
const rows = Array.from({length: 40000}, row);
const text = JSON.stringify(rows);
console.log(text.length, crypto.createHash('sha256').update(text).digest('hex'), JSON.parse(text).length);
const packed = zlib.gzipSync(text, {level: 6});
console.log(zlib.gunzipSync(packed).length);
const map = new Map();
for (let i = 0; i < 300000; i++) map.set('k' + i % 50021, (map.get('k' + i % 50021) || '') + i % 10);
console.log(map.size, [...map.values()].reduce((a, s) => a + s.length, 0));
const buffers = [];
for (let i = 0; i < 3000; i++) { buffers.push(Buffer.alloc(i * 10 + 1, i)); if (i % 3 == 0) buffers[i] = null; }
console.log(buffers.reduce((a, b) => a + (b ? b[0] : 0), 0));
console.log(text.match(/name \d*9"/g).length, text.split('name').length);
const size = (k) => new Promise((done) => zlib.deflate(Buffer.alloc(1000000, 'abc' + k), (e, b) => done(b.length)));
Promise.all([1, 2, 3, 4].map(size)).then(sizes => console.log(sizes));
"""

AWK = rb"""
{ count[$1]++; sum[$1] += $2; last[NR % 5000] = $0; if (length($3) > 20) long++; text = text substr($0, 1, 1); }
END {
  n = 0; for (k in count) n += count[k] * length(k);
  for (i = 0; i < 5000; i++) total += length(last[i]);
  print NR, n, total, long, length(text);
  for (i = 0; i < 20; i++) print "w" i, count["w" i], sum["w" i];
}
"""

SHELL = rb"""
set -eu
mkdir tree
for i in $(seq 60); do mkdir -p "tree/$((i % 7))"; head -n "$((i * 20))" lines.txt > "tree/$((i % 7))/f$i"; done
tar --sort=name --mtime=@0 --owner=0 --group=0 -cf tree.tar tree
gzip -n9 < tree.tar | md5sum
gzip -n9 < tree.tar | gzip -dc | tar -tf - | sort | md5sum
find tree -type f -size +4k | sort | xargs grep -c 'w1[0-9]* ' | md5sum
grep -Eo '[0-9]+ .*(ab|cd)+' lines.txt | sed -E 's/([0-9])([0-9])/\2\1/g; s/a(.)/\1a/g' | cut -c1-60 | md5sum
declare -A seen
while read -r word number rest; do seen[$word]=$(( ${seen[$word]:-0} + number % 10 )); done < <(head -n 8000 lines.txt)
for word in $(printf '%s\n' "${!seen[@]}" | sort | head -n 40); do echo "$word ${seen[$word]}"; done
printf '.PHONY: all\nall: $(addsuffix .x,$(shell seq 200))\n\t@:\n%%.x:\n\t@echo $* >> made\n' > Makefile
make -j2 >/dev/null; sort -n made | md5sum
"""


def lines(count: int) -> bytes:
    """Lines of a word, a number and some more letters."""
    made = []
    state = 12345
    for number in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        tail = "abcdefghij"[state % 10 :] * (state // 1000 % 6)
        made.append(f"w{state // 7 % 997} {number * 7919 % 100003} {tail} {state:x}")
    return ("\n".join(made) + "\n").encode()


def cplusplus() -> bytes:
    """A large C++ file: many instances of many templates."""
    head = (
        "#include <algorithm>\n#include <functional>\n#include <iostream>\n#include <map>\n#include <memory>\n"
        "#include <regex>\n#include <set>\n#include <sstream>\n#include <string>\n#include <unordered_map>\n"
        "#include <vector>\n"
        "template <int N> struct T { std::map<int, std::vector<T<N - 1>>> m; std::string s = std::to_string(N);\n"
        "  int sum() const { int r = N; for (auto& p : m) for (auto& t : p.second) r += t.sum(); return r; } };\n"
        "template <> struct T<0> { int sum() const { return 1; } };\n"
    )
    functions = [
        f"int f{i}(int x) {{\n"
        f"  T<{i % 12 + 1}> t; t.m[x].resize({i % 5 + 1});\n"
        f"  std::unordered_map<std::string, std::function<int(int)>> u;\n"
        f'  u["k{i}"] = [x](int y) {{ return x * {i} + y; }};\n'
        f'  std::set<std::pair<int, std::string>> s{{{{x, t.s}}, {{{i}, "b"}}}};\n'
        f"  std::ostringstream o; for (auto& p : s) o << p.first << p.second; \n"
        f'  return t.sum() + u["k{i}"]({i}) + static_cast<int>(o.str().size());\n}}\n'
        for i in range(30)
    ]
    main = (
        "int main() { long r = 0;" + "".join(f" r += f{i}({i});" for i in range(30)) + ' std::cout << r << "\\n"; }\n'
    )
    return (head + "".join(functions) + main).encode()


def git_history(git: str) -> str:
    """A shell script that makes a hundred commits, some on a branch that is merged, at fixed dates."""
    return f"""
set -eu
for i in $(seq 100); do
  for k in 0 1 2 3 4; do
    seq $((i * k % 50)) $((i * 13 + k * 100)) > "file$k.txt"
    [ $((i % 3)) -ne 0 ] || printf 'line %s of %s\\n' "$k" "$i" >> "file$k.txt"
  done
  export GIT_AUTHOR_DATE="$((1600000000 + i * 60)) +0000" GIT_COMMITTER_DATE="$((1600000000 + i * 60)) +0000"
  {git} add -A
  {git} commit -q -m "commit $i"
  if [ "$i" = 50 ]; then {git} checkout -q -b side; seq 999 > side.txt; {git} add -A; {git} commit -q -m side
    {git} checkout -q main; fi
done
{git} merge -q --no-edit -m merged side
{git} tag -a -m tagged v1
"""


def postscript() -> bytes:
    """Four pages of text, curves, clipping, and an image."""
    page = """
/Times-Roman findfont 11 scalefont setfont
0 1 60 { /i exch def 40 750 i 12 mul sub moveto (Line ) show i 20 string cvs show ( of page PAGE: a fox) show } for
0 2 358 { /a exch def gsave 300 400 translate a rotate a 360 div 1 a 360 div sub 0.5 setrgbcolor
  0 0 moveto 50 100 150 PAGE 10 mul 200 a 4 div curveto 0.3 setlinewidth stroke grestore } for
gsave 100 100 translate 200 200 scale newpath 0.5 0.5 0.5 0 360 arc clip
64 64 8 [64 0 0 -64 0 64]
{ /n n 1 add def 64 string 0 1 63 { 1 index exch dup n mul PAGE 7 mul add 256 mod put } for } image grestore
showpage
"""
    return ("%!PS\n/n 0 def\n" + "".join(page.replace("PAGE", str(number)) for number in range(1, 5))).encode()


def redis_commands() -> bytes:
    """Strings, lists, hashes, sets, sorted sets, a script, expiry and deletion."""
    commands = []
    for i in range(4000):
        commands.append(f"set s:{i} {'v' * (i % 500)}{i}")
        commands.append(f"hset h:{i % 200} f{i} {i * 7919 % 10007}")
        commands.append(f"rpush l:{i % 50} {'e' * (i % 70)}{i}")
        commands.append(f"zadd z:{i % 20} {i * 31 % 997} m{i}")
        if i % 3 == 0:
            commands.append(f"del s:{i // 2}")
        if i % 5 == 0:
            commands.append(f"append s:{i} {'a' * 1000}")
    commands += [f"lrange l:{i} 0 5" for i in range(50)]
    commands += ["eval \"local t = {} for i = 1, 5000 do t[i] = 'x' .. i end return #table.concat(t)\" 0", "dbsize"]
    return ("\n".join(commands) + "\n").encode()


def mariadb_sql() -> bytes:
    """Tables, indexes, joins and changes."""
    return b"""
create database w; use w;
create table t(id int primary key, k int, name varchar(100), body text, key by_k(k), key by_name(name)) engine=innodb;
insert into t
  select seq, seq * 7919 % 10007, concat('name ', seq * 31 % 997), repeat('x', seq % 300) from seq_1_to_100000;
select count(*), sum(k), sum(length(body)) from t;
select name, count(*), avg(k) from t group by name order by 2 desc, 1 limit 20;
select a.id, b.id from t a join t b on a.k = b.k and a.id < b.id where a.name = 'name 13' order by 1, 2 limit 50;
update t set body = concat(body, body) where id % 5 = 0;
delete from t where id % 7 = 3;
select k, id, row_number() over (partition by k order by id) from t where k < 20 order by 1, 3;
select md5(group_concat(name order by id separator ',')) from t where id < 5000;
"""
