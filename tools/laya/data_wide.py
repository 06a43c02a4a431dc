"""Wider wording, for kinds of requests that a scorer of the first two files got wrong: a result named without a verb, facts about code
that want a word, questions for advice or for the story behind something, instructions with a long input (all of it ours)."""
from data_en import LISTS, items, lines

LISTS.update(
    algo=items("binary search|quicksort|Dijkstra|A*|the sieve of Eratosthenes|a prefix tree|an LRU cache|tic-tac-toe|snake|a Mandelbrot plot|a bouncing ball|FFT|matrix inversion|a hash table|a linked list|minesweeper|a chess move generator|k-means|gradient descent|Levenshtein distance|base64|SHA-256|a tokenizer|a ray tracer|a producer and a consumer|a thread pool|dot product|convolution|a ring buffer|union-find|the Towers of Hanoi|eight queens|a sudoku solver|an event loop|a bloom filter|a calculator|text adventure|a rate limiter"),
    how3=items("in the terminal|branch-free|with SIMD|in one line|recursive|iterative|without recursion|generic|lock-free|vectorised|in as few characters as you can|type-safe|with comments|cache-friendly|no imports|readable|in functional style|async|idiomatic|constant time|with pointers only|in assembly|for a microcontroller|as a macro|single file|with tests"),
    kwfact=items("keyword for a constant|keyword that starts a loop|type of the literal 1.0|operator for integer division|operator for not equal|symbol for comments|default integer size|function for the length of a list|name of the package manager|file that lists dependencies|command that runs the tests|method that adds to the end of a list|index of the first element|keyword to leave a loop|exception when a key is missing|extension of header files|the null value's name|keyword that declares a function|module for regular expressions|escape for a new line"),
    cplx=items("binary search|heap push|merging two sorted lists|inserting at the front of an array|bubble sort|hash lookup|breadth-first search|finding the minimum|building a heap|matrix multiplication, naive|reversing a list|popping from a stack|balanced tree insert"),
    custom=items("throwing rice at weddings|April Fools' Day|the colour of school buses|shaking hands|counting from zero|blue jeans|Friday the 13th|the Oxford comma|driving on the left|the QWERTY layout|toasting with glasses|the word OK|black cats and bad luck|tipping|birthday cakes|the number 404|tea at five|ties for men|the marathon's length|leap years|the first bug|camel case|tabs against spaces|open source|the Unix pipe|null pointers|semicolons|recursion jokes|vi and emacs|the halting problem|garbage collection|Y2K|the floppy disk icon"),
    legend=items("Einstein bad at maths|Marie Antoinette heartless|Columbus the first|Newton hit by an apple|Nero a fiddler|Van Gogh poor|the Great Wall visible from space|chess invented in India|Vikings horned|Shakespeare one person|Beethoven deaf when he wrote the Ninth|Pluto a planet|the tomato a fruit|the Titanic doomed|Robin Hood real|King Arthur real|Edison the inventor of the bulb"),
    lifestep=items("starts a first job|moves to a new city|becomes a father at forty|learns to swim late|has lost a friend|wants to write a book|retires next month|goes back to school|shares a flat with strangers|starts running|leads a team for the first time|is afraid of flying|quits sugar|takes over the family shop|learns an instrument at sixty"),
    vmail=items("I'm out till Monday|the shop is closed on Sunday|we moved to the second floor|leave your number|back at three|the lift is broken|please knock|wet paint|beware of the dog|no parking|thanks for waiting|congratulations to both of you|get well soon|happy birthday, boss|welcome home|sorry I missed you"),
    yn2=items("spam|an insult|sarcastic|passive-aggressive|a question|a request|about money|polite|true|written by a child|grammatical|in English|an idiom|hateful|ethical|a pun|clickbait|a haiku|a compliment|off topic|urgent|an advert"),
    cats=items("Promotions or Social|positive or negative|fact or opinion|work or private|toxic or fine|A, B or C|support or refute|formal or informal|bug or feature|easy, medium or hard|past or future|human or machine|rural or urban|verb or noun|question or answer|invoice or reminder|thriller or romance"),
)

CODE = lines(r"""
[Something fun|Small challenge|For tonight|Kata|Warm-up]: {algo}[ {how3}|][, {how3}|].
{algo}, {how3}[, {how3}|][.|]
{algo}, {lang}[, {how3}|]
[No talk|No explanation|No prose|Nothing else|Skip the intro], just {algo} [in {lang}|{how3}][.|: go.]
[Just produce|Only output|Show me|Let's see|I want|I'd like|Give me]: {algo}[, {how3}|, {lang}|].
{lang}. {algo}. {how3}.
[same|that] but {how3}: {snip}
[How would you|How do I|how to] [implement|code|do|write] {algo} {how3}?
[kernel|routine|function|class|module|header|subroutine] for {algo}, {how3}
[Here's|This is] my {algo}, [it's slow|it leaks|wrong on empty input|make it {how3}].\n{snip}
{snip}\n[gives|prints|returns] {n}, [should be|I want|expected] {d}. [What should it look like?|Right version?|Where's my mistake?|Correct it.]
""")
PROSE = lines(r"""
[Where does|What is the story of|How did people come to] {custom}[ come from| begin|]? [Tell it properly.|Where does the custom come from?|I'd like the whole story.|]
[Why|How] [did|does] {custom} [become a thing|catch on|survive|still matter]? [The history, please.|Who began it, and why?|]
[Recount|Tell|Narrate|Walk me through] [the story of|how people came to|the history of] {custom}[, narrative form|, as a story|, from the beginning|].
[Could you|Would you|Can you] [recount|retell|describe|narrate] how {custom} came [about|into the world][ and why it lasted so long|]?
Was {legend}? [Go beyond yes or no.|More than yes or no, please.|I'd like the sources.|Tell me where the idea comes from.|What do historians say, and why?|Explain at length.]
[Is it true that|Was] {legend}, [and where does the legend come from|and how do we know|and why do people believe it]?
[What advice|Which advice|What tips] [would you give|do you have|have you got] [to|for] someone who {lifestep}?
[A friend|My cousin|My mother|A colleague] {lifestep}. [What would you tell them?|How can I help?|Write them a few encouraging paragraphs.|What should one know?]
[What do you think|Between the lines, what is] [this review|this mail|this note|the author] [really saying|trying to say|hinting at]?\n\n"{passage}"
"{sent}" [How do you read this?|What is left unsaid here?|What might the writer feel, and why?|Interpret.]
[Interpret|Comment on|Discuss|Unpack] [the following|this]: "{sent}"
[Explain|Describe] the [plot|ending|idea|appeal] of [a heist film|Hamlet|the Odyssey|a good crime novel|The Little Prince].
[Describe|Plan|Sketch] a [road trip|weekend|honeymoon|school trip] [for|to] [the given place|{city}], [with stops|day by day|for someone who likes {thing}].
[Instruction|Task]: [write a reply|give advice|tell a story|describe in detail|argue for it]\nInput: {passage}
[What are some things|What can one do] to [calm down|sleep better|save money|meet people|learn faster|stay warm]?
Brainstorm [ideas|names with a reason each|topics|resolutions] for {place}.
""")
SHORT = lines(r"""
{lang}: {kwfact}?
[{kwfact} in {lang}?|What's the {kwfact} in {lang}?|In {lang}, {kwfact}?|{lang} {kwfact}]
[Which|What] {kwfact}[, {lang}|]?
[O()|Big O|complexity|time complexity|worst case] of {cplx}[?|, just the O| in big O|, on average?]
{cplx}: [O(?)|complexity?|how many steps for {n} items? number]
[One line|A one-liner|A sentence|Short text] for [my voicemail|the door|the sign|a card|the group chat|my out-of-office|the notice board]: {vmail}.
[Text|Caption|Sign|Note]: {vmail}. [In one line.|Keep it to five words.|Nicer, one sentence.]
[Is|Tell me if|Decide if|Identify whether|Indicate whether|Does it sound] [the following|this|the given] [text|sentence|statement|mail|behaviour] [is|:|] {yn2}[ or not|?|. Output 1 or 0.| Answer yes or no.|]\n\n{tweet}
[Decide|Tell|Say|Choose] [whether|if] the [given|following] [email|text|item|sentence] [belongs to|is] {cats}.\n\n[Text: |Input: |Subject: |]{tweet}
[Instruction|Task]: [say if it is|is this] {yn2}\nInput: {tweet}\nOutput:
[Instruction|Task]: choose {cats}\n[Input|Text]: {passage}\n[Output|Answer]:
[Document|Text|Passage]: {passage}\n[Claim|Statement]: {sent}\n[Supported?|Support or unsupport?|True or false?]
[Extract|Find|List|Return] all the [names|cities|years|numbers|dates|countries|adjectives] in the [paragraph|text], separated by commas.\n\n{passage}
[Extract|Find] the [address|total|name of the place|year|main topic] [from|in] the text.\n\n{passage}
[Summarise|Sum up|Condense] [in|into] [three words|one word|five words|a hashtag|one short sentence]: {passage}
[Rewrite|Correct|Capitalise|Fix the spelling of|Make passive|Make a question of|Make more professional] [the sentence|this|the text]: {sent}
{passage}\n\n[So who was it?|Which year?|How old?|One-word answer: where?|Title for it?|Tone in one word?|Language?|Genre, one word]
[Genre|Author|Year|Country] of [the book|the film], one word: [The Trial|Solaris|Casablanca|Rebecca|Metropolis|Ulysses|Amelie|Alien]
[Synonym|Antonym|Rhyme|Plural|Past tense|Emoji] for the [given word|word below]\n\n{word}
[Which|What] [number|word|letter] comes next? {d}, {n}, {d2}, ...
""")
_ADVICE = {
    "fr": ("Quels conseils [donneriez-vous|donnerais-tu] à quelqu'un qui [change de métier|part vivre à l'étranger|devient parent|arrête de fumer]?\nD'où vient [l'habitude de trinquer|la coutume du poisson d'avril|le mot « bug »] ?\nComment [vivaient|mangeaient] les gens [au Moyen Âge|avant l'électricité] ?\nQue penses-tu de {subj} ?", "[Le mot-clé|L'opérateur] {lang} pour [une constante|une boucle|la négation] ?\nComplexité de {cplx} ?\n[Oui ou non|Vrai ou faux] : {subj} ?\n{passage}\n[Quelle année ?|Qui ? Un nom.|Résume en trois mots.]"),
    "de": ("Welchen Rat [gibst du|würden Sie] jemandem[ geben|], der [den Beruf wechselt|ins Ausland zieht|Vater wird|mit dem Rauchen aufhört]?\nWoher kommt [das Anstoßen mit Gläsern|der Aprilscherz|das Wort „Bug“]?\nWie [lebten|aßen] die Leute [im Mittelalter|vor der Elektrizität]?\nWas hältst du von {subj}?", "Schlüsselwort in {lang} für [eine Konstante|eine Schleife|nicht]?\nLaufzeit von {cplx}?\n[Ja oder nein|Wahr oder falsch]: {subj}?\n{passage}\n[Welches Jahr?|Wer? Nur der Name.|In drei Worten.]"),
    "es": ("¿Qué consejos [darías|daría usted] a alguien que [cambia de trabajo|se muda al extranjero|va a ser padre|deja de fumar]?\n¿De dónde viene [la costumbre de brindar|el día de los inocentes|la palabra «bug»]?\n¿Cómo [vivía|comía] la gente [en la Edad Media|antes de la electricidad]?\n¿Qué opinas de {subj}?", "¿Palabra clave de {lang} para [una constante|un bucle]?\n¿Complejidad de {cplx}?\n[¿Sí o no?|¿Verdadero o falso?] {subj}\n{passage}\n[¿Qué año?|¿Quién? Solo el nombre.|En tres palabras.]"),
    "pt": ("Que conselhos [darias|você daria] a quem [muda de emprego|vai morar fora|vai ser pai|deixa de fumar]?\nDe onde vem [o hábito de brindar|o primeiro de abril]?\nO que acha de {subj}?", "Palavra-chave de {lang} para [uma constante|um laço]?\nComplexidade de {cplx}?\nSim ou não: {subj}?\n{passage}\n[Que ano?|Quem? Só o nome.]"),
    "it": ("Che consigli [daresti|darebbe] a chi [cambia lavoro|va a vivere all'estero|diventa padre|smette di fumare]?\nDa dove viene [l'usanza di brindare|il pesce d'aprile]?\nCosa pensi di {subj}?\nCome [vivevano|mangiavano] nel Medioevo?", "Parola chiave di {lang} per [una costante|un ciclo]?\nComplessità di {cplx}?\nSì o no: {subj}?\n{passage}\n[Che anno?|Chi? Solo il nome.|In tre parole.]"),
    "nl": ("Welk advies geef je aan iemand die [van baan wisselt|naar het buitenland verhuist|vader wordt]?\nWaar komt [proosten|1 april] vandaan?\nWat vind je van {subj}?", "Sleutelwoord in {lang} voor [een constante|een lus]?\nJa of nee: {subj}?\n{passage}\n[Welk jaar?|Wie? Alleen de naam.]"),
    "sv": ("Vilka råd [skulle du ge|ger du] till någon som [byter jobb|flyttar utomlands|ska bli förälder|slutar röka]?\nVar kommer [skålandet|aprilskämtet] ifrån?\nVad tycker du om {subj}?\nHur [levde|åt] folk på medeltiden?", "Nyckelord i {lang} för [en konstant|en slinga]?\nJa eller nej: {subj}?\n{passage}\n[Vilket år?|Vem? Bara namnet.|Med tre ord.]\nSverige - huvudstad?"),
    "pl": ("Jakie rady dał[|a]byś komuś, kto [zmienia pracę|wyjeżdża za granicę|zostaje ojcem|rzuca palenie]?\nSkąd się wziął [zwyczaj toastów|prima aprilis]?\nCo sądzisz o {subj}?\nJak [żyli|jedli] ludzie w średniowieczu?", "Słowo kluczowe {lang} dla [stałej|pętli]?\nTak czy nie: {subj}?\n{passage}\n[Który rok?|Kto? Samo imię.|W trzech słowach.]\nZłożoność {cplx}?"),
    "ru": ("Какие советы вы бы дали тому, кто [меняет работу|переезжает за границу|становится отцом|бросает курить]?\nОткуда пошёл [обычай чокаться|первоапрельский розыгрыш]?\nКак [жили|питались] люди в Средние века?", "Ключевое слово {lang} для [константы|цикла]?\nДа или нет: {subj}?\n{passage}\n[Какой год?|Кто? Только имя.|Тремя словами.]\nСложность {cplx}?"),
    "ja": ("[転職する|海外に引っ越す|父親になる|禁煙する]人にどんな助言をしますか?\n[乾杯|エイプリルフール]の習慣はどこから来たのですか?\n{subj}についてどう思いますか?", "{lang}で[定数|ループ]のキーワードは?\nはいかいいえで: {subj}?\n{passage}\n[何年?|誰? 名前だけ|三語で]\n{cplx}の計算量は?"),
    "zh": ("对[换工作|出国生活|初为人父|戒烟]的人,你会给什么建议?\n[碰杯|愚人节]的习俗从哪里来?\n你怎么看{subj}?", "{lang}里[常量|循环]的关键字?\n是或否: {subj}?\n{passage}\n[哪一年?|谁? 只写名字|三个词概括]\n{cplx}的复杂度?"),
    "ko": ("[이직하는|해외로 이사하는|금연하는] 사람에게 어떤 조언을 하시겠어요?\n[건배|만우절] 풍습은 어디서 왔나요?\n{subj}에 대해 어떻게 생각해요?", "{lang} [상수|반복문] 키워드는?\n예 아니오: {subj}?\n{passage}\n[몇 년?|누구? 이름만]\n{cplx} 복잡도?"),
    "tr": ("[İş değiştiren|Yurt dışına taşınan|Sigarayı bırakan] birine ne tavsiye edersin?\n[Kadeh tokuşturma|1 Nisan] geleneği nereden geliyor?\n{subj} hakkında ne düşünüyorsun?", "{lang} dilinde [sabit|döngü] anahtar sözcüğü?\nEvet mi hayır mı: {subj}?\n{passage}\n[Hangi yıl?|Kim? Sadece ad.]"),
    "ar": ("ما نصيحتك لمن [يغير عمله|يسافر للعيش في الخارج|يقلع عن التدخين]؟\nمن أين جاءت [كذبة أبريل|عادة المصافحة]؟\nما رأيك في {subj}؟", "الكلمة المفتاحية في {lang} [للثابت|للحلقة]؟\nنعم أم لا: {subj}؟\n{passage}\n[أي سنة؟|من؟ الاسم فقط]"),
    "hi": ("[नौकरी बदलने|विदेश जाने|धूम्रपान छोड़ने] वाले को आप क्या सलाह देंगे?\n[अप्रैल फूल|हाथ मिलाने] की परंपरा कहाँ से आई?\n{subj} के बारे में आप क्या सोचते हैं?", "{lang} में [स्थिरांक|लूप] का कीवर्ड?\nहाँ या नहीं: {subj}?\n{passage}\n[कौन सा साल?|कौन? सिर्फ़ नाम]"),
    "uk": ("Що б ви порадили тому, хто [змінює роботу|переїздить за кордон|кидає палити]?\nЗвідки пішов [звичай цокатися|день сміху]?\nЩо думаєш про {subj}?", "Ключове слово {lang} для [сталої|циклу]?\nТак чи ні: {subj}?\n{passage}\n[Який рік?|Хто? Лише ім'я.]"),
    "cs": ("Co bys poradil někomu, kdo [mění práci|se stěhuje do ciziny|přestává kouřit]?\nKde se vzal [přípitek|apríl]?\nCo si myslíš o {subj}?", "Klíčové slovo {lang} pro [konstantu|cyklus]?\nAno nebo ne: {subj}?\n{passage}\n[Který rok?|Kdo? Jen jméno.]"),
    "vi": ("Bạn khuyên gì cho người [đổi việc|ra nước ngoài sống|bỏ thuốc lá]?\nTục [nâng ly|cá tháng tư] từ đâu mà có?\nBạn nghĩ gì về {subj}?", "Từ khoá {lang} cho [hằng số|vòng lặp]?\nCó hay không: {subj}?\n{passage}\n[Năm nào?|Ai? Chỉ tên.]"),
    "id": ("Apa saranmu untuk orang yang [ganti pekerjaan|pindah ke luar negeri|berhenti merokok]?\nDari mana asal [kebiasaan bersulang|April Mop]?\nApa pendapatmu tentang {subj}?", "Kata kunci {lang} untuk [konstanta|perulangan]?\nYa atau tidak: {subj}?\n{passage}\n[Tahun berapa?|Siapa? Namanya saja.]"),
}
LANG = {k: ("{algo}, {lang}, {how3}\n{lang}: {algo}\n{snip}\\n{how3}?", p, s.replace("{passage}\n", "{passage}\\n")) for k, (p, s) in _ADVICE.items()}
