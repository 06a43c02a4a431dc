#!/usr/bin/env python3
"""Make labelled requests (code, prose, short) for the routing scorer: deterministic by seed, standard library only.

    generate.py --out train.jsonl --n 150000 --seed 1 --split train
    generate.py --out valid.jsonl --n 6000 --seed 2 --split valid

The class of a conversation is the kind of ANSWER that its last request needs. `--split valid` uses one eighth of the
templates, which `--split train` never uses, so that accuracy on it tells about wordings that were not trained on;
`--split all` is for a last training, when all has been chosen.
Lines: {"messages", "label", "lang", "tpl"}; every text stays under 1,024 bytes (longer ones never reach the scorer).
"""
import argparse
import ast
import glob
import hashlib
import json
import random
import re
import sysconfig
import unicodedata

import data_en as en
import data_lang as dl
import data_more
import data_wide

for more in (data_more, data_wide):
    for _label in ("CODE", "PROSE", "SHORT"):
        getattr(en, _label).extend(getattr(more, _label))
    for _lang, _sets in more.LANG.items():
        for _label, _text in zip(("code", "prose", "short"), _sets):
            dl.L[_lang][_label].extend(en.lines(_text))

GATE = 1024
HELD_OUT = 8  # one template in so many is for validation


def held_out(template):
    return hashlib.sha256(template.encode()).digest()[0] % HELD_OUT == 0


# ---------------------------------------------------------------- code to show
IDENT = "items names buf data totals row queue parts users orders result count price node head values score total index line text key path cfg state acc left right".split()
FUNC = "load visit update users render orders check sync parse merge find_max total_of clean read_all convert is_valid next_id average flatten send split_words apply".split()
SNIPS = [
    "for (int {i} = 0; {i} <= {n}; {i}++) {a}[{i}] = 0;", "int {f}(int *{a}, int n) {{\n    int s = 0;\n    for (int i = 0; i < n; i++) s += {a}[i];\n    return s;\n}}",
    "def {f}({a}=[]):\n    {a}.append({n})\n    return {a}", "def {f}({a}, {b}):\n    if not {a}:\n        return {b}\n    return {f}({a}[1:], {b} + {a}[0])",
    "if ({a} = {n}) {{ {f}(); }}", "const {f} = ({a}) => {a}.filter(x => x > {n}).map(x => x * 2);", "async function {f}({a}) {{\n  const r = await fetch('/api/{b}/' + {a});\n  return r.json();\n}}",
    "SELECT {a}, COUNT(*) FROM {f} WHERE {b} > {n}", "SELECT {a}, MAX({b}) FROM {f};", "UPDATE {f} SET {a} = {n} WHERE {b} IN (SELECT {b} FROM old_{f});", "if [ ${a} == {n} ] then {f} fi",
    "for f in *.{b}; do mv \"$f\" \"${{f%.{b}}}.{a}\"; done", "for _, {i} := range {a} {{ go func() {{ {f}({i}) }}() }}", "func {f}({a} []int) int {{\n\tm := {a}[0]\n\tfor _, v := range {a} {{\n\t\tif v > m {{ m = v }}\n\t}}\n\treturn m\n}}",
    "let {a} = vec![{n}]; let {i} = {a}; println!(\"{{:?}}\", {a});", "fn {f}({a}: &str) -> usize {{\n    {a}.chars().filter(|c| c.is_numeric()).count()\n}}", "String {a} = null; if ({a}.length() > {n}) {f}();",
    "public static int {f}(List<Integer> {a}) {{\n    return {a}.stream().mapToInt(x -> x).sum();\n}}", "<ul><li>{a}<li>{b}</ul", ".{a} {{ color: {b} width: {n}px }}", "<div class=\"{a}\" onclick={f}()>{b}</div>",
    "char *{f}(void) {{ char {a}[{n}]; return {a}; }}", "try:\n    {f}({a})\nexcept:\n    pass", "{a}:\n - {i}: {n}\n  {b}: true", "std::vector<int> {a}; auto& {i} = {a}[0]; {a}.push_back({n}); {f}({i});",
    "template<class T> T {f}(T {a}, T {b}) {{ return {a} < {b} ? {b} : {a}; }}", "print(*(x for x in range(2,{n}) if all(x%d for d in range(2,int(x**.5)+1))))", "{a} = [x ** 2 for x in range({n}) if x % 2]",
    "awk -F, '{{ s += ${n} }} END {{ print s }}' {a}.csv", "{f} = foldr (\\x acc -> x + acc) 0", "class {F}:\n    def __init__(self, {a}):\n        self.{a} = {a}\n    def {f}(self):\n        return self.{b}",
    "$%s = $_GET['{a}'];\necho \"<p>$%s</p>\";" % ("{b}", "{b}"), "def {f}({a})\n  {a}.map {{ |x| x * {n} }}.sum\nend", "data class {F}(val {a}: Int, var {b}: String?)", "local {a} = {{}}\nfor i = 1, {n} do {a}[i] = i * i end",
    "=IF(A{n}>B{n},\"{a}\",VLOOKUP(A{n},C:D,2,0))", "^[a-z]{{{n}}}-(\\d+)$", "cat {a}.log | grep -v {b} | sort | uniq -c | sort -rn", "FROM python:3.11\nCOPY {a}.py .\nCMD python {a}.py", "while True: {a} += 1",
    "useEffect(() => {{ {f}({a}) }})", "switch ({a}) {{ case {n}: {f}(); case {m}: {g}(); }}", "git rebase -i HEAD~{n}", "df.groupby('{a}')['{b}'].mean().reset_index()", "kubectl get pods -n {a} | grep {b}",
    "void loop() {{\n  digitalWrite(13, HIGH);\n  delay({n});\n}}", "x = {a}[{n}] if {a} else None", "let rec {f} = function [] -> 0 | x :: r -> x + {f} r", "import numpy as np\n{a} = np.zeros(({n},{m}))\nprint({a}.shape)",
    "printf(\"%d\\n\", {a}++ + ++{a});", "public void {f}() {{ synchronized(this) {{ {g}(); }} }}", "mov eax, {n}\nadd eax, ebx\nret", "{{\"{a}\": {n}, \"{b}\": [\"x\", \"y\"],}}", "var {a} = {n}; function {f}() {{ console.log({a}); var {a} = {m}; }}",
]
TRACES = [
    "Traceback (most recent call last):\n  File \"{f}.py\", line {n}, in <module>\n    {a} = {b}[{m}]\n{err}", "thread 'main' panicked at src/{f}.rs:{n}:{m}: {err}", "Exception in thread \"main\" java.lang.IllegalStateException: {a}\n\tat com.acme.{F}.{f}({F}.java:{n})",
    "TypeError: Cannot read properties of undefined (reading '{a}')\n    at {f} ({b}.js:{n}:{m})", "{f}.c:{n}:{m}: error: '{a}' undeclared (first use in this function)", "panic: runtime error: index out of range [{m}] with length {m}\n\ngoroutine 1 [running]:\nmain.{f}()\n\t/src/{a}.go:{n}",
    "npm ERR! code ERESOLVE\nnpm ERR! could not resolve {a}@{m}.0", "error[E0382]: borrow of moved value: `{a}`\n --> src/{f}.rs:{n}:{m}", "2024-03-{m} 02:14:{n} ERROR [{f}] {err}\n2024-03-{m} 02:14:{n} WARN retrying {a}",
    "ERROR 1064 (42000): You have an error in your SQL syntax near '{a}' at line {m}", "/usr/bin/ld: {f}.o: undefined reference to `{g}'", "{f}.sh: line {n}: {a}: command not found", "Fatal error: Uncaught Error: Call to undefined function {f}() in /var/www/{a}.php:{n}",
]
DIFFS = ["--- a/{f}.py\n+++ b/{f}.py\n@@ -{n},3 +{n},3 @@\n-    return {a}\n+    return {a} or {b}", "@@ -{n} +{n} @@\n-if ({a} == null)\n+if ({a} == null || {b} < {m})", "-  timeout: {n}\n+  timeout: {n}0\n   retries: {m}"]
EVALS = ["print({n} {op} {m})", "len('{w}')", "'{w}'.upper()", "sum(range({m}))", "[{n}, {m}, 3][-1]", "{n} % {m}", "max({n}, {m}, 7)", "'{w}'[0]", "{n} == {m}", "echo $(({n} + {m}))", "SELECT {n} + {m};", "int('{n}') + {m}", "'{w}'[::-1]",
         "sorted([{n},{m},5])[0]", "typeof null", "0.1 + 0.2 == 0.3", "'{m}' + {n}", "{n} // {m}", "not True or False", "[1,2,3].length", "'a' * {m}", "parseInt('{m}px')", "{n} & {m}", "bool('')", "x = {n}; x += {m}; print(x)", "puts {n}.even?", "list('{w}')[1]", "1 << {m}"]
WHO = "the old harbour|our neighbour|a quiet village|the committee|the young doctor|that winter|the last ferry|my grandfather|a small museum|the orchestra|the river|the new teacher|the market|a tired courier|the island|the editor".split("|")
DID = "changed more than anyone expected|was famous for its bread|never forgot the storm of that year|kept a list of every promise|opened its doors before dawn|lost half of its visitors|wanted nothing but silence|argued about the price of salt|carried letters across the hills|became a place for painters|measured time by the tides|had to choose between two roads|laughed at the idea|grew slowly and without a plan|sold maps that were out of date|believed that work is a kind of play".split("|")
AND = "and nobody could say why|although the money was gone|because the roads were closed|while the city slept|as the records from {y} show|which surprised the visitors|and that was only the beginning|long before the railway came|despite all warnings|so people began to talk|until the letters stopped|and the children remembered it".split("|")


def stdlib_functions(r):
    out = []
    files = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py"))
    r.shuffle(files)
    for f in files[:60]:
        try:
            s = open(f, encoding="utf8").read()
            tree = ast.parse(s)
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for n in ast.walk(tree):
            if isinstance(n, ast.FunctionDef):
                t = ast.get_source_segment(s, n)
                if t and 60 <= len(t) <= 520:
                    pad = " " * n.col_offset
                    out.append("\n".join(l[len(pad):] if l.startswith(pad) else l for l in t.split("\n")))
    return out


class Maker:
    def __init__(self, seed, split):
        self.r = random.Random(seed)
        self.valid, self.all = split == "valid", split == "all"
        self.code = stdlib_functions(self.r)
        self.en = {c: self.mine(t) for c, t in (("code", en.CODE), ("prose", en.PROSE), ("short", en.SHORT))}
        self.lang = {k: {c: self.mine(v[c]) or v[c][:1] for c in self.en} for k, v in dl.L.items()}
        self.follow = [f for f in en.FOLLOW if self.all or held_out(f[2]) == self.valid]
        self.prior = {"code": en.CODE, "prose": en.PROSE, "short": en.SHORT}

    def mine(self, templates):
        return [t for t in templates if self.all or held_out(t) == self.valid]

    # ---- filling templates
    def names(self):
        r = self.r
        f, g = r.sample(FUNC, 2)
        a, b = r.sample(IDENT, 2)
        return dict(f=f, g=g, a=a, b=b, F=f.title().replace("_", ""), i=r.choice("ijkmn"), n=r.randint(3, 99), m=r.randint(2, 12),
                    w=r.choice(en.LISTS["word"]).split()[0], op=r.choice("+-*"), err=r.choice(en.LISTS["err"]))

    def snippet(self):
        r = self.r
        if self.code and r.random() < 0.3:
            s = r.choice(self.code)
        else:
            s = "\n".join(r.choice(SNIPS).format(**self.names()) for _ in range(r.choice([1, 1, 1, 2])))
        return f"```{r.choice(['', '', 'python', 'js', 'c', 'sql'])}\n{s}\n```" if r.random() < 0.3 else s

    def sentence(self):
        r = self.r
        s = f"{r.choice(WHO)} {r.choice(DID)}" + (f", {r.choice(AND).format(y=r.randint(1780, 2015))}" if r.random() < 0.7 else "") + "."
        return s[0].upper() + s[1:]

    def slot(self, name, lists):
        r = self.r
        if name in lists:
            return r.choice(lists[name])
        if name in en.LISTS:
            return r.choice(en.LISTS[name])
        one = lambda l: r.choice(l).format(**self.names())
        made = dict(
            snip=self.snippet, trace=lambda: one(TRACES), diff=lambda: one(DIFFS), eval=lambda: one(EVALS), evalc=lambda: one(EVALS), sql=lambda: one([s for s in SNIPS if s.startswith(("SEL", "UPD"))]),
            codefrag=lambda: one([s for s in SNIPS if len(s) < 60]), parag=lambda: " ".join(self.sentence() for _ in range(r.randint(2, 4))),
            n=lambda: str(r.choice([r.randint(2, 20), r.randint(10, 99), r.randint(100, 9999)])), d=lambda: str(r.randint(2, 28)), n2=lambda: str(r.randint(40, 2020)), d2=lambda: str(r.randint(3, 40)), d3=lambda: str(r.randint(5, 60)),
            ref=lambda: f"{r.choice('ABKQXZ')}{r.randint(100, 99999)}", cell=lambda: f"{r.choice('ABC')}{r.randint(1, 9)}", ident=lambda: r.choice(FUNC), cols=lambda: ", ".join(r.sample(IDENT, 3)),
            table=lambda: f"{r.choice(FUNC)}({', '.join(r.sample(IDENT, 3))})", howto2=lambda: r.choice(en.LISTS["howto"]).replace("my ", "your "))
        return made[name]()

    def fill(self, t, lists):
        """Draw alternatives, innermost first, then slots until none is left. What is drawn for a slot is not read
        for alternatives again: snippets hold brackets of their own."""
        r = self.r
        alt = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
        while True:
            m = alt.search(t)
            if not m:
                break
            t = t[:m.start()] + r.choice(m.group(1).split("|")) + t[m.end():]
        for _ in range(5):
            parts = re.split(r"\{([a-z_0-9]+)\}", t)
            if len(parts) == 1:
                break
            t = "".join(p if i % 2 == 0 else (self.slot(p, lists) if p in lists or p in KNOWN or p in en.LISTS else "{" + p + "}") for i, p in enumerate(parts))
        return t.replace("\\n", "\n")

    # ---- slips and habits of people who type
    def noise(self, s, lang):
        r = self.r
        k = r.random()
        if k < 0.14:
            s = s.lower()
        elif k < 0.16:
            s = s.upper()
        if r.random() < 0.18:
            s = s.rstrip(".?!。？ ")
        if lang in ("es", "fr", "pt", "it", "de", "tr", "pl", "cs", "sv", "vi") and r.random() < 0.12:
            s = "".join(c for c in unicodedata.normalize("NFD", s) if not unicodedata.combining(c))
        for _ in range(r.choice([0, 0, 0, 0, 0, 0, 1, 2])):
            if len(s) < 12:
                break
            i = r.randrange(1, len(s) - 2)
            if s[i].isalpha() and s[i + 1].isalpha():
                s = r.choice([s[:i] + s[i + 1] + s[i] + s[i + 2:], s[:i] + s[i + 1:], s[:i] + s[i] + s[i:]])
        if lang == "en" and r.random() < 0.08:
            for a, b in ((" you ", " u "), (" please", " pls"), (" are ", " r "), ("because", "bc"), (" your ", " ur "), (" to ", " 2 "), ("what is", "whats"), ("I am", "im"), ("don't", "dont"), ("cannot", "cant")):
                s = s.replace(a, b)
        return s

    # ---- one request
    def english(self, label):
        r = self.r
        t = r.choice(self.en[label])
        if label == "short" and r.random() < 0.10:            # what would be prose, but kept short by its last words
            t = r.choice(self.en["prose"])
            while "{parag}" in t or "{snip}" in t or "{passage}" in t or len(t) > 160:
                t = r.choice(self.en["prose"])
            return self.noise(self.fill(t, {}).rstrip(". ") + ". " + r.choice(en.LISTS["limit"]), "en"), "prose+limit"
        if label == "prose" and r.random() < 0.04:            # a fact, but asked for at length
            t = r.choice(self.en["short"])
            while not t.endswith("?") or "{" not in t or "{snip" in t or "{codefrag" in t or len(t) > 60:
                t = r.choice(self.en["short"])
            return self.noise(self.fill(t, {}) + " " + r.choice(["Explain in detail why.", "And tell me the whole story behind it.", "Give me a few paragraphs of background.", "Then describe at length what that means for ordinary people."]), "en"), "short+long"
        s = self.fill(t, {})
        raw = any(x in t for x in ("{snip", "{trace}", "{diff}", "{parag}", "{passage}", "{tweet}", "{mail}", "{eval", "{codefrag}"))
        if label == "short" and r.random() < 0.22 and "{limit}" not in t and len(t) > 25:
            s += " " + r.choice(en.LISTS["limit"])
        if label == "prose" and r.random() < 0.2:
            s += " " + r.choice(en.LISTS["longer"])
        if not raw:
            s = r.choice(en.LISTS["hi"]) + s + r.choice(en.LISTS["bye"])
            s = self.noise(s, "en")
        return s, t

    def foreign(self, label, lang):
        r = self.r
        d = dl.L[lang]
        t = r.choice(self.lang[lang][label])
        lists = d["lists"]
        if label == "short" and r.random() < 0.08:
            t = r.choice(self.lang[lang]["prose"])
            while "{parag}" in t:
                t = r.choice(self.lang[lang]["prose"])
            return self.noise(self.fill(t, lists) + " " + r.choice(lists["limit"]), lang), lang + ":prose+limit"
        s = self.fill(t, lists)
        if label == "short" and r.random() < 0.2 and len(s) > 12:
            s += " " + r.choice(lists["limit"])
        if label == "prose" and r.random() < 0.2 and "long" in lists:
            s += " " + r.choice(lists["long"])
        if not any(x in t for x in ("{snip", "{parag}", "{codefrag}")):
            s = self.noise(r.choice(d["hi"]) + s, lang)
        return s, lang + ":" + t

    def one(self, label, lang):
        return self.english(label) if lang == "en" else self.foreign(label, lang)

    def answer(self, label):
        r = self.r
        if label == "code":
            return "Here you are:\n" + self.snippet()
        if label == "prose":
            return " ".join(self.sentence() for _ in range(r.randint(2, 4)))
        return r.choice(["Yes.", "42.", "No.", "Paris.", "Hello! How can I help?", "You are welcome.", "1969.", "Blue.", "True.", "O(n log n).", "About 300.", "C.", "Sure, go ahead."])

    def conversation(self):
        r = self.r
        lang = "en" if r.random() < 0.56 else r.choice(LANGS)
        label = r.choice(["code", "prose", "short"])
        msgs = []
        k = r.random()
        if k < 0.10:
            msgs.append(("system", r.choice(SYSTEM)))
        if k > 0.95 and self.follow:
            label, before, t = r.choice(self.follow)
            text, tpl = self.noise(self.fill(t, {}), "en"), "follow:" + t
            lang = "en"
            msgs += [("user", self.fill(r.choice(self.prior[before]), {})), ("assistant", self.answer(before))]
        else:
            text, tpl = self.one(label, lang)
            for _ in range(r.choice([0] * 8 + [1, 2])):
                before = r.choice(["code", "prose", "short"])
                msgs += [("user", self.fill(r.choice(self.prior[before]), {}) if r.random() < 0.6 else r.choice(["hi", "Are you there?", "I have a question.", "thanks for yesterday", "What can you do?"])),
                         ("assistant", self.answer(before))]
        msgs.append(("user", text.strip()))
        return dict(messages=[dict(role=a, content=b) for a, b in msgs], label=label, lang=lang, tpl=tpl)


SYSTEM = ["You are a helpful assistant.", "Be concise.", "You write good code.", "Answer like a novelist.", "Today is Tuesday.", "You are the assistant of a bakery.", "Never use lists.", "You are an expert programmer.", "You are a friendly tutor.",
          "Respond in the user's language.", "You are Kim, the support agent of a phone company.", "You are a careful assistant. If you do not know something, say so.", "The user is on a mobile device.", "You help with writing.", "Format answers in Markdown."]
# languages by weight: the larger ones more often
LANGS = [k for k in dl.L for _ in range(3 if k in ("de", "fr", "es", "zh", "ja", "ru", "pt", "it") else 2 if k in ("ko", "ar", "hi", "pl", "nl", "tr") else 1)]
KNOWN = set("snip trace diff eval evalc sql codefrag parag n d n2 d2 d3 ref cell ident cols table howto2".split())


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", required=True)
    ap.add_argument("--n", type=int, default=150000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--split", choices=["train", "valid", "all"], default="train")
    a = ap.parse_args()
    m = Maker(a.seed, a.split)
    seen = set()
    tries = 0
    with open(a.out, "w", encoding="utf8") as f:
        while len(seen) < a.n and tries < 20 * a.n:
            tries += 1
            c = m.conversation()
            text = "\n".join(x["content"] for x in c["messages"])
            if len(text.encode()) >= GATE or not c["messages"][-1]["content"] or text in seen:
                continue
            seen.add(text)
            f.write(json.dumps(c, ensure_ascii=False) + "\n")
    print(f"{len(seen)} conversations")


if __name__ == "__main__":
    main()
