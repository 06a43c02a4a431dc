"""English templates and word lists of the routing scorer's training data (all of it ours).

Grammar: {name} draws from a list below (or from a function of generate.py), [a|b|c] draws one of the parts, which
may hold further slots. One template a line. The class is the kind of ANSWER that the request needs; templates are
written so that subject, length and tone say nothing about it.
"""


def lines(s):
    return [x.strip() for x in s.strip().split("\n") if x.strip()]


def items(s):
    return [x.strip() for x in s.replace("\n", "|").split("|") if x.strip()]


LISTS = dict(
    lang=items("Python|Go|Rust|C|C++|Java|JavaScript|TypeScript|bash|PowerShell|SQL|Ruby|PHP|Kotlin|Swift|Haskell|Perl|Lua|awk|R|Zig|C#|Scala|Elixir|Dart|Julia|MATLAB|Fortran|OCaml|VBA|Clojure|F#|Groovy|Erlang|assembly|python3|js|node|plain C|modern C++|jq|sed"),
    fw=items("React|Vue|Svelte|Django|Flask|FastAPI|Rails|Spring Boot|Express|Laravel|Angular|Next.js|pandas|numpy|PyTorch|Qt|Unity|Godot|Flutter|SwiftUI|Jetpack Compose|Tailwind|d3|three.js|Arduino|ESP32|Raspberry Pi Pico|micro:bit|Home Assistant|Selenium|pytest|JUnit|ggplot2|matplotlib|tkinter|pygame|LaTeX|GitHub Actions|Terraform|Ansible|Kubernetes|Docker|nginx|Apache|systemd|cron|vim|emacs|tmux|Blender|OpenSCAD|Google Sheets|Excel|LibreOffice Calc|Apps Script|Power Query|Airtable|PostgreSQL|MySQL|SQLite|MongoDB|Redis|Elasticsearch|Kafka"),
    task=items("""renames photos by the date they were taken|removes duplicate lines but keeps the order|checks for palindromes|merges two sorted lists|lists all links of a page|turns a CSV file into JSON|counts words in a text|backs up a folder every night|sorts people by age
finds the longest common prefix|parses dates like 3 Mar 2021|validates email addresses|computes the n-th prime|prints new files in a folder|reverses a linked list|flattens a nested list|rotates a matrix|retries a request with growing pauses|reads a temperature sensor
draws a bar chart|splits a big file into parts|converts between Celsius and Fahrenheit|finds two numbers that add up to a target|groups log lines by hour|shuffles a deck of cards|caches slow results|counts files per extension|posts to a chat webhook|resizes images to 800 pixels
detects cycles in a graph|makes random passwords|deletes temp files older than a week|kills whatever listens on a port|joins two tables by customer|keeps a running median|prints a month's calendar|pads numbers in file names|strips HTML tags|solves sudoku|plays tic-tac-toe
tracks the price of a product|scrapes headlines|plays a sound when a timer ends|sorts my downloads by type|converts markdown to HTML|checks which of my sites are down|compares two folders|plots the humidity in my greenhouse|blinks an LED when mail arrives|simulates dice rolls
generates invoices as PDF|logs keypad presses|controls a stepper motor|mirrors a git repository|watches CPU load and warns me|encrypts a file with a password|formats phone numbers|rounds prices to five cents|exports contacts to vCard|turns subtitles into plain text|draws a fractal
builds a binary search tree|evaluates arithmetic expressions|implements an LRU cache|does a breadth-first search|computes an edit distance|parses command line options|reads a QR code|streams a file over TCP|limits requests per client|bakes a table of contents into a document"""),
    gadget=items("""a countdown timer|a dark mode switch|a login form|a sticky header|a star rating widget|an image carousel|a tip calculator|a tabbed view|a progress bar|a cookie banner|a search box with suggestions|a drag and drop upload|a tic tac toe board|a colour picker|an infinite scroll list
a responsive menu|a contact form|a stopwatch|a shopping cart counter|a modal dialog|a price table|a copy-to-clipboard button|a snake game|a todo list|a password strength meter|a map with pins|an animated loader|a weather card|a quiz with score|a kanban board|a unit converter page"""),
    conf=items("""Dockerfile|docker compose file|GitHub workflow|makefile|JSON schema|GraphQL schema|systemd timer|nginx server block|Terraform module|Helm values file|Ansible playbook|HTML form|bash completion|crontab line|logrotate rule|pre-commit config|ESLint config|Kubernetes deployment
udev rule|SQL view|stored procedure|database trigger|htaccess rewrite|LaTeX template|Gradle build file|CMakeLists.txt|VBA macro|Selenium test|protobuf definition|CSS grid layout|CSS animation|SVG icon|OpenAPI spec|iptables rule|ssh config|vimrc|tmux config|i3 config|gitignore|tsconfig
webpack config|Prometheus alert rule|Grafana query|regex|XSLT|XPath expression|mongo aggregation|cypher query|Arduino sketch|shader|Jenkinsfile|CloudFormation stack|robots.txt|sitemap generator|package.json script|Zapier code step|Google Apps Script|Power Query step|batch file|AutoHotkey script|AppleScript"""),
    place=items("""a flower shop|our parish newsletter|a chess club|a static blog|a two-player quiz|a weather station|a recipe library|an invoice service|a small forum|a photo archive|a parking meter|a school timetable|a rowing club|a podcast|a bike rental|a museum kiosk|a choir|a crossword site
a translation agency|a vet's waiting room|a fish tank|a car park|an escape room|a tennis league|a food bank|a bakery|a hospital ward|a dentist|a warehouse|a book club|a ferry line|a hostel|a dance school|a law office|an orchard|a startup|a nursery school|a gym|a hotel|a call centre"""),
    sheet=items("""adds up only the rows marked paid|looks a price up in another tab|splits an address at the comma|counts distinct names in a column|shows the last filled cell|turns minutes into hours and minutes|ranks pupils by marks|highlights duplicates|computes an age from a birthday
joins first and last name|averages without the zeros|finds the nearest date|colours a row when the date has passed|extracts the domain from an email|sums per month|removes trailing spaces|returns the second highest value|counts weekdays between two dates|transposes a list|fills gaps with the value above"""),
    gitdo=items("""throw away changes in one file|squash the last four commits|move a commit to another branch|find the commit that broke the build|remove a password from history|rename a branch on the server|stash only new files|cherry-pick a range|see what changed since Monday|split a commit in two
undo a pushed merge|sign every commit|change the author of the last commit|recover a deleted branch|pull without a merge commit|tag an old commit|unstage everything|list branches already merged|make git forget a tracked file|clone only the last revision|undo my last commit but keep the files"""),
    shelldo=items("""find all files bigger than 1 GB|count the lines of every log|replace foo by bar in all files below here|show which process eats the memory|copy a folder over ssh and resume|list the ten largest directories|rename *.jpeg to *.jpg|kill every zombie of my user|watch a log and highlight errors
convert a folder of wav to mp3|unpack a tar without the top folder|mount an iso|see open ports|sum the third column of a file|delete empty folders|download every pdf of a page|compare two remote files|run a job at 3am on weekdays|resize a partition|make a bootable stick|print lines 20 to 40|find broken symlinks"""),
    query=items("""the ten best customers of each region|orders without a delivery|employees who earn more than their boss|the second highest salary|rows that occur twice|each product's share of sales|gaps in a series of numbers|days without a login|the newest message per thread|a running total by month
products nobody ever bought|the longest streak of wins|users who signed up but never ordered|the median price per category|overlapping bookings|the first purchase of every client|teams with no captain|monthly active users|a pivot of sales by quarter|children of a given node"""),
    pattern=items("a British phone number|an IPv4 address|a time such as 23:59|a hex colour|an ISBN|a number plate|text between brackets|a word said twice|a line without a comma|a price in euros|a UUID|a markdown link|a German postcode|a credit card number|a semantic version|an HTML comment|a Windows path|digits not followed by kg|quoted strings"),
    event=items("""a parcel mail arrives|I plug in my camera|the washing machine is done|a new PDF lands in downloads|the disk is nearly full|someone edits the wiki|my web shop goes down|it freezes outside|a colleague checks in late|the battery is at ten percent|a form is filled in|the stock of flour runs low|the sun sets|the door opens|I join a meeting"""),
    react=items("""write a line to a spreadsheet|send me a text|rename and file it|play a sound|make a backup|switch the heating on|post it to our channel|print a label|sort it by month|add it to the calendar|turn a lamp red|mute my phone|log the time|ping my watch|start the pump"""),
    err=items("""KeyError: 'id'|segmentation fault (core dumped)|undefined is not a function|index out of range|cannot borrow `x` as mutable|NullPointerException|permission denied|connection refused|unexpected indent|ORA-00933|ModuleNotFoundError|deadlock detected|stack overflow|undefined reference to `main'
TypeError: unsupported operand|SyntaxError near 'FROM'|expected ';' before '}'|CORS policy blocked|ECONNREFUSED 127.0.0.1:5432|cannot read properties of undefined (reading 'map')|no such column: usr|CrashLoopBackOff|exit code 137|use of moved value|ImportError: circular import|#VALUE!|#REF!|404 on every route|SSL certificate problem|maximum recursion depth exceeded|fatal: not a git repository|unterminated string literal|lifetime may not live long enough|bus error|invalid literal for int() with base 10: ''|merge conflict in package-lock.json|java.lang.OutOfMemoryError|ERR_TOO_MANY_REDIRECTS"""),
    subj=items("""the water cycle|how vaccines train the body|the fall of the Roman empire|sleep and memory|bees and pollination|the French Revolution|plate tectonics|inflation and interest rates|why the sky turns red at dusk|coral reefs|the silk road|black holes|stoic philosophy|jazz in the 1920s|fermentation|the printing press
learning a language as an adult|the industrial revolution|how a boat sails against the wind|tidal power|urban gardening|the history of chess|bird migration|the placebo effect|home insulation|Gothic cathedrals|jury selection|desert ecosystems|nuclear fusion|the origin of writing|the immune system|supply and demand
the Apollo missions|renaissance painting|soil erosion|electric cars in winter|photosynthesis|the cold war|the human heart|climate change|volcanoes|the Ottoman empire|emotional intelligence|remote work|universal basic income|veganism|artificial intelligence in schools|social media and teenagers|the stock market|compound interest
intermittent fasting|the big bang|evolution|dreams|the Great Depression|colonialism|beer brewing|sourdough|meditation|impressionism|the Vikings|samurai|the Aztecs|opera|minimalism|procrastination|burnout|negotiation|public speaking|friendship|loneliness|grief|democracy|propaganda|nuclear power|whales|mushrooms|antibiotics|gene editing
the moon's effect on tides|rainbows|how planes fly|how soap works|how a fridge works|inheritance of eye colour|the electoral college|the European Union|Brexit|the Suez canal|Shakespeare's comedies|magical realism|the Beatles|hip hop|flamenco|the Olympic games|football hooliganism|marathon training|yoga|houseplants|cats and their whiskers"""),
    tech=items("""garbage collection|microservices|continuous integration|type systems|open source licences|code review|technical debt|the history of Unix|functional programming|database normalisation|the CAP theorem|pair programming|version control|container orchestration|the Y2K problem|compilers|software estimation|blockchain
public key cryptography|static versus dynamic typing|monorepos|web accessibility|the rise of JavaScript|memory safety|event sourcing|feature flags|the waterfall model|API design|unit testing|caching|agile planning|zero trust networks|COBOL in banks|test-driven development|quantum computing|neural networks|large language models|cloud costs|recursion|race conditions|DNS|HTTPS|REST and GraphQL|NoSQL|serverless|object orientation|design patterns|floating point numbers|hash tables|operating system kernels|the TCP handshake|ORMs|on-call duty|hackathons|legacy code|low-code tools|VPNs|passkeys"""),
    thing=items("""an old lighthouse keeper|a broken umbrella|a talking teapot|the last train home|a lost glove|a grey cat|a retired magician|a blue door|a nervous dragon|a forgotten melody|a robot gardener|two rival bakers|a snowed-in airport|a stolen violin|a secret recipe|a paper boat|a jealous moon|a stubborn donkey|an empty theatre|the smell of rain
a detective who hates puzzles|a mermaid accountant|a village without clocks|a pirate's diary|a shy giant|a haunted elevator|the first colony on Mars|a spy with amnesia|a dog that sees ghosts|a bus driver on her last day|a lonely satellite|a clockmaker's apprentice"""),
    aud=items("beginners|children|my manager|a jury|tourists|retired people|new parents|teenagers|a ten-year-old|my grandmother|investors|nurses|first-year students|night-shift workers|people who hate maths|a general audience|farmers|someone who has never travelled"),
    whom=items("my landlord|the mayor|an old friend|my future self|the bus company|my daughter's teacher|the editor of a newspaper|my grandmother|a penfriend|the neighbours upstairs|a hotel|my first boss|the tax office|an unhappy customer|our investors|my team|HR|a supplier|my ex|the school board|a recruiter|my insurance"),
    matter=items("a broken heater|a late train|a stolen bike|the noise at night|a wrong invoice|a cancelled trip|a missing parcel|a delayed refund|an unpaid bill|my resignation|a pay rise|a leaking roof|the new schedule|a lost suitcase|moving the deadline|a wedding invitation|a rescheduled meeting|the budget cut|parking|a product recall|parental leave|a reference letter"),
    occ=items("a retirement|a christening|a bakery opening|a school reunion|a golden wedding|a funeral|the last day of term|a book launch|a club anniversary|a volunteers' award|a farewell party|a village fête|a best man's toast|a graduation|a product launch|a housewarming|mother's day"),
    why=items("""cats purr|the sea is salty|we dream|leaves turn yellow|people yawn|bread rises|ice floats|time seems to speed up as we age|we get goosebumps|onions make us cry|the moon has phases|some people are left-handed|prices rise|music moves us|planes leave trails|old books smell nice|flamingos are pink|we can't tickle ourselves|languages die|stars twinkle|rents keep going up|babies cry so much|dogs tilt their heads|wine gets better with age|coffee keeps you awake|metal feels colder than wood|wars start|empires fall|we procrastinate|glass is transparent|it's hard to lose weight"""),
    howto=items("""get red wine out of a carpet|ask for a raise|choose a first telescope|stop biting my nails|make friends in a new city|prepare for a job interview|train a puppy|cook rice properly|learn to swim as an adult|fall asleep faster|save money on a small income|start running|plan a wedding|write a good CV|repot an orchid|deal with a difficult colleague|get over a breakup|learn the guitar|organise a move|talk to my teenager
grow tomatoes on a balcony|negotiate my rent|meditate|survive a long flight|study for finals|pack for two weeks in one backpack|clean a cast iron pan|remove mould in the bathroom|give a good toast|stay motivated|invest my first savings|descale a kettle|build a habit|quit smoking|calm a crying baby|improve my handwriting|paint a room|sharpen knives|read more books|reduce screen time"""),
    dish=items("lentil soup|lasagne|banana bread|a vegan curry|pancakes|risotto|ramen|a birthday cake|apple pie|paella|hummus|a roast chicken|ratatouille|pierogi|tiramisu|shakshuka|kimchi|goulash|pad thai|fish tacos|borscht|falafel"),
    trip=items("Rome|Kyoto|Lisbon|Iceland|Scotland|Istanbul|Mexico City|Vietnam|the Alps|Morocco|New Zealand|Prague|Seville|Kerala|Patagonia|Tallinn|Naples|Seoul|the Baltic coast|Provence"),
    country=items("Peru|Norway|Kenya|Japan|Portugal|Vietnam|Canada|Egypt|Poland|Chile|Iceland|Morocco|Finland|Nepal|Cuba|Laos|Ghana|Greece|Malta|Oman|Australia|Brazil|Turkey|Mongolia|Ethiopia|Bolivia|Hungary|New Zealand|Sri Lanka|Uruguay|Estonia|Belgium"),
    city=items("Graz|Split|Cusco|Osaka|Tokyo|Sydney|Toronto|Nairobi|Lyon|Porto|Leeds|Boston|Cairo|Delhi|Hanoi|Zagreb|Riga|Dublin|Madrid|Vienna|Istanbul|Rio|Lagos|Perth|Oslo"),
    person=items("Darwin|Mozart|Cleopatra|Newton|Gandhi|Marie Curie|Napoleon|Einstein|Frida Kahlo|Beethoven|Socrates|Lincoln|Tesla|Galileo|Picasso|Ada Lovelace|Turing|Shakespeare|Confucius|Mandela|Van Gogh|Bach|Hemingway|Churchill"),
    name=items("Mrs Ito|Tom Brandt|Dr Silva|Aunt Vera|Captain Noor|Lena P.|Mr Osei|Judge Marlow|Priya|Karim|Sofia|Mr Lindqvist|Yuki|Old Tom|Ms Abara|Coach Dean|Nadia|Pavel"),
    word=items("window|quickly|brave|thank you|library|mouse|winter|honest|bread|yesterday|child|beautiful|cold|key|mountain|goose|necessary|receive|ubiquitous|ephemeral|happy|fast|big|generous|stubborn|begin|rhythm|separate|accommodate|embarrass|serendipity|nostalgia|angry|tired|easy|light|old|buy|write|cheap|freedom"),
    tongue=items("French|German|Spanish|Italian|Dutch|Japanese|Swedish|Latin|Polish|Portuguese|Turkish|Russian|Arabic|Hindi|Korean|Chinese|Greek|Welsh|Finnish|Danish|Norwegian|Czech"),
    phrase=items("good morning|thank you very much|where is the station|I love you|cheers|how much is this|see you tomorrow|I'm hungry|happy birthday|excuse me|the bill, please|I don't understand|no problem|good night|my name is Sam|two tickets, please|it's raining|what time is it"),
    element=items("iron|gold|sodium|lead|silver|potassium|tin|mercury|copper|tungsten|helium|carbon|chlorine|calcium|zinc|neon|uranium|nitrogen"),
    unit=items("kilometres to miles|pounds to kilograms|litres to gallons|degrees Celsius to Fahrenheit|inches to cm|ounces to grams|acres to hectares|knots to km/h|feet to metres|cups to ml|stone to kg|MB to GB|hours to seconds|miles to km|psi to bar|calories to joules"),
    invent=items("wrote War and Peace|painted the Night Watch|discovered penicillin|invented the telephone|composed the Four Seasons|was the first person in space|wrote the Odyssey|directed Jaws|founded Rome|won the 2010 World Cup|played the lead in Casablanca|wrote Hamlet|discovered radium|built the Eiffel Tower|created Linux|wrote The Hobbit|was US president in 1990|sang Thriller|invented dynamite|painted Guernica|was Alexander the Great's teacher|came up with relativity"),
    yearq=items("did the Berlin wall fall|did the Titanic sink|was the first moon landing|did World War One begin|was the euro introduced|did Columbus sail west|was penicillin discovered|did the French Revolution start|was Linux first released|did Elvis die|was the UN founded|did Japan host the Olympics first|was the iPhone launched|did the Soviet Union collapse|was Mozart born|did the Great Fire of London happen|was the Magna Carta signed|did Queen Victoria die"),
    superl=items("longest river|highest mountain|smallest country|largest ocean|fastest land animal|hottest planet|deepest lake|oldest university|tallest building|most spoken language|biggest desert|heaviest metal|largest organ of the body|brightest star|biggest island|busiest airport|lightest element|largest mammal|hardest natural substance"),
    acro=items("TLS|ACID|REST|DNS|RAID|CRUD|JSON|SIMD|WYSIWYG|BIOS|MVC|ORM|NATO|UNESCO|GDP|DNA|ATM|PDF|HTML|LED|SCUBA|RSVP|CEO|FAQ|IBAN|VAT|USB|GPS|ISBN|NASA|MRI|ETA|PIN|API|SSD|KPI|SaaS"),
    svc=items("SSH|HTTPS|PostgreSQL|Redis|DNS|SMTP|MySQL|RDP|MQTT|FTP|MongoDB|IMAP|LDAP|NTP|Kafka|SNMP"),
    httpq=items("not found|created|too many requests|forbidden|bad gateway|moved permanently|unauthorised|teapot|internal error|no content|gateway timeout|conflict"),
    alg=items("quicksort|binary search|merge sort|heap insertion|bubble sort|hash lookup|Dijkstra with a heap|depth-first search|insertion sort|building a heap|matrix multiplication done naively"),
    sets=items("apple, pear, carrot, plum|red, green, heavy, blue|trout, salmon, sparrow, eel|hammer, saw, tulip, drill|piano, flute, lamp, drum|Rhine, Elbe, Alps, Danube|sonnet, ode, haiku, spoon|knight, bishop, goalkeeper, rook|iron, zinc, oak, copper|Paris, London, Brazil, Rome|dog, cat, table, horse|Python, Ruby, Cobra, Java|seven, blue, nine, two|Mars, Venus, Moon, Saturn|shirt, coat, sock, cup"),
    product=items("a water bottle|a bamboo toothbrush|noise-cancelling headphones|an oat milk brand|a dog-walking app|a budgeting app|a yoga studio|a language school|a food truck|a hiking boot|an indie bookshop|a coffee subscription|a smart lamp|a coding bootcamp|a candle shop|a bike courier|a meal kit|a pottery class|an electric scooter|a podcast about history"),
    sit=items("""have two job offers and cannot decide|moved to a new city and know nobody|want to start running at fifty|must tell my parents that I quit university|argue with my flatmate about cleaning|cannot sleep before exams|inherited an old house|lead a team for the first time|want to eat less meat|lost interest in my hobby|feel like an impostor at work|am afraid of flying|just became a father|have a toxic boss|want to change careers at forty|keep comparing myself to others|was passed over for promotion|can't stick to a routine|have a crush on a colleague|am overwhelmed by email|lent money to a friend who won't pay back|have to give a speech and panic|feel lonely since I work from home|got rejected again"""),
    mail=items("""Dear {name}, your table for {n} is booked for the {d}th of May, reference {ref}.|{name} called at {d} o'clock about invoice {ref}, amount {n} euros.|Parcel {ref} for {name} weighs {d} kg and waits at counter {n}.|{name} wrote: I loved every minute, apart from the soup.|{name} says the room was cold, the bed broken and the staff rude.
Reminder: {name}, the dentist expects you on the {d}th at nine, code {ref}.|The delivery came {d} days late and the box was crushed. Never again!|Absolutely brilliant service, {name} went out of her way to help us.|It does what it says. Not more, not less.|Meeting moved to room {n}, {d}:30, please bring the {ref} folder.|Flight {ref} to {city} is delayed by {n} minutes.|Hi, the app keeps logging me out since the update, please fix it.
Order {ref} shipped on 2023-04-{d}, carrier promises {n} days.|Our revenue grew by {n} percent to {d} million euros last year, said {name}.|The patient, {n}, complains of headaches since {d} days.|WIN A FREE PHONE!!! Click now, code {ref}|I can't decide whether I like this blender. Loud, but the smoothies are great."""),
    sent=items("""She don't like apples.|The committee has reached it's decision.|Me and him went to the shop.|I could of told you that.|Their going to be late again.|The results was surprising to all of us.|He run every morning before work.|We was waiting for hours.|Could you borrow me your pen?|I have saw this film twice.|Yesterday I go to the market.|The quick brown fox jumps over the lazy dog.|It is what it is.|The meeting has been postponed until further notice.|All that glitters is not gold.|Our train leaves at dawn, so pack light."""),
    proverb=items("A stitch in time|The early bird|Too many cooks|When in Rome|Better late than|Actions speak louder|Don't count your chickens|Every cloud has|The pen is mightier|Birds of a feather|Where there's smoke|A watched pot"),
    review=items("laptop|vacuum cleaner|hotel|novel|phone|tent|film|restaurant|pair of headphones|board game|mattress|espresso machine"),
    limit=items("""Answer with one word.|Just the number, please.|One sentence only.|yes or no?|Only the name.|Keep it to a single line.|No explanation needed.|(short answer)|Reply with the word alone.|tl;dr, five words at most|one line max|nothing else|answer only|Just the answer.|in a word|single word answer|no essay please, just the answer|Max 10 words.|number only|be brief, one sentence|just say A or B|I only need the name|quick answer pls|Don't explain.|Output only the result.|y/n|short reply please"""),
    longer=items("""Take your time and go into detail.|A few paragraphs would be perfect.|Please be thorough.|I have a whole evening to read.|Write for a newcomer.|Use everyday examples.|around 400 words|At least three paragraphs.|500 words.|Two pages if need be.|I want the full picture.|Walk me through it properly.|The more background the better.|Make it vivid.|in depth please|long answer welcome|Give reasons and examples.|no bullet points, flowing text"""),
)
# empty parts count here: most requests open and close without ceremony
LISTS["hi"] = "||||||||Hi! |Hello, |hey |Quick one: |Sorry to bother you. |Good morning. |ok so |Please |I was wondering: |For my class: |My boss asks: |yo |hi there, |Hey, |umm |Dear assistant, |So, |Next: |One more thing: |Question: |random question - |be a dear: |Alright. |Could you help me? |help! |PLS: |I'd appreciate it: |new topic. ".split("|")
LISTS["bye"] = "|||||||||| Thanks!| thx| Cheers.| Thank you in advance.| 🙏| (I'm on my phone)| It's urgent.| ty| please| Much appreciated.| Thank you so much| asap| :)| plz| Ta.".split("|")

CODE = lines(r"""
[Write|Make|Create|Build|Code|Give me] a {lang} [program|script|function|tool|class|module] that {task}.
I need something in {lang} that {task}.
{lang} [script|program|function] that {task}
How would I write a function in {lang} that {task}?
[Give me|I want|need] a one-file [tool|utility] that {task}.
can u make me a script that {task}
Show me code which {task}; any language will do.
Is there a {lang} snippet that {task}?
My laptop is full of files and I want a small utility that {task}. Can you build it?
Implement a class in {lang} that {task}, with tests.
Automate this for me: it {task}. I don't know how to program.
a [makefile target|shell alias|cron job|git hook] that {task}
Write [unit tests|property tests|a test] in {lang} for a function that {task}.
I get `{err}` when my {lang} program {task}. [How do I fix it?|What now?|Help me fix this.]
Why does {lang} say "{err}"? Show the corrected lines.
Port my {lang} tool, which {task}, to {lang}.
Finish this: a {lang} function named `{ident}` that {task}.
[{conf}|a {conf}] for {place}[| please| with comments|, minimal but complete|, production ready]
I'd like a {conf} for {place}.
We run {place} and need a {conf}. What goes into the file?
[Spreadsheet|Excel|Google Sheets|Calc] formula that {sheet}.
Which formula {sheet}? My data starts in {cell}.
{fw}: I need [a formula|something] that {sheet}.
[git: how do I|how to|What are the git commands to|exact git commands to] {gitdo}[?|, step by step commands|]
Query for {query}, [PostgreSQL|MySQL|SQLite|T-SQL|BigQuery].
[SQL|A query|a select] that [lists|returns|shows] {query}[.|, tables orders and customers|; table names are up to you]
I want to see {query}; schema is {table}.
[regular expression|regex] for {pattern}[, {lang} flavour| please| that also allows spaces|]
Match {pattern} and capture it.
Whenever {event}, my computer should {react}. [How do I set that up?|Write whatever is needed.]
no idea about programming, but when {event} it should {react}[, on a Raspberry Pi| on my Mac|]
{lang} one-liner: it {task}.
Show the same loop in {lang} and {lang}.
How do you [declare a map of lists|read a file line by line|format a date|spawn a thread|parse JSON|sort by two keys|catch an exception|define an interface|make an HTTP request] in {lang}? [Example, please.||show me]
Template for a {lang} project with tests and a linter.
Simulate {place} with objects in {lang}.
mock data for {place}, as a {lang} generator
API handler in {lang} for {place}: create, read, delete.
My {conf} is rejected with `{err}`; what should the fixed file look like?
i want {gadget} on my [page|site|shop], [vanilla js only|no libraries|with {fw}|html and css]
[Build|Make|Create|can you do] {gadget} [in|with] {fw}.
{gadget} in {fw}[ pls|, mobile friendly|]
{fw}: how do I [center a div|add pagination|handle form errors|deploy behind a proxy|cache a query|write a migration|mock a request|load data lazily|share state|debounce input]? 
[commands|terminal command|shell one-liner|what do I type] to {shelldo}[?| on linux| on ubuntu| in powershell|]
How do I {shelldo} [from the terminal|with bash|on the command line]?
Set up {fw} [so that it restarts after a crash|with https|for {place}|behind nginx|in Docker]. Give me the files.
Convert this [curl command|SQL|pseudo code|JSON] into {lang}: {codefrag}
Translate this pseudo code into idiomatic {lang}: [for each order, if it is paid and older than {n} days, archive it|read numbers until zero, then print the mean|ask for a name three times, stop when it is known|walk the tree and add up the leaves].
There's a bug here somewhere:\n\n{snip}
{snip}\n\n[what is wrong with it|Mend this, please.|why doesn't it work|fix|Fix the bug|Tidy up and comment.|make it faster|Explain this code line by line.|what does this do??|Rewrite it in {lang}.|Add type hints|Write tests for it.|refactor pls|explain|Review this.|is there a memory leak? show the fix|turn it into an async version|port to {lang}|Optimise this|handle the empty case]
[What does this do?|Explain:|Debug this|Find the bug.|Rewrite in {lang}:|Make this readable:|Walk me through this code|Simplify:|Please review my function|complete the body|Add error handling to this|can you vectorise this|unfold this one-liner so a human can read it|Convert to {lang}:|it prints nothing, why?|this crashes with `{err}`]\n\n{snip}
{trace}\n\n[What's wrong?|how do I fix this|Patch it.|help|Any idea? The line is {codefrag}|Fix it please|why|it worked yesterday]
[Since the update I get this:|My build fails:|Log from last night:|getting this in production]\n{trace}\n[Patch it so that empty rows are skipped.|What do I have to change?|fix?|]
[Here is a diff, write the missing test|Review this patch|Is this diff safe? Show the better version|finish this change]:\n{diff}
My table is {table}. [Write the insert and the select for a report.|Add a column and fill it.|Normalise it, give me the DDL.|I need {query}.|index it properly, show the statements]
{sql} [gives me the wrong rows. What should the statement look like?|is slow, rewrite it|- rewrite with a window function|throws an error, fix it|]
my [bluetooth thermometer|GPS tracker|heart rate strap|weather station|scale] sends {n} bytes, the first two little endian [tenths of a degree|grams|millivolts], the third [humidity|battery|a flag]. [Decode it|Parse it|Read it] [on an ESP32|in {lang}|on Arduino].
I teach [nine-year-olds|teenagers|beginners]. A [turtle-graphics program|Scratch-like game|small {lang} exercise with solution] that draws [a snowflake|a spiral|a house|stars] would make their day.
Generate [an OpenAPI file|a JSON schema|protobuf messages|SQL DDL|a GraphQL schema|TypeScript types] for {place} with two [endpoints|tables|entities].
{codefrag} <- [what does each part mean|why does this fail in {lang}|make this work in {lang}|rewrite without the regex]
Make [nginx|Apache|Caddy|HAProxy|Traefik] [redirect port 80 to https|serve two domains|cache images for a week|block a country|proxy websockets]. [Config block please.|]
[leetcode|Advent of Code|homework]: given [an array of ints|a string|a grid|a list of intervals|a binary tree], [return the longest run|count the islands|merge overlaps|find the k-th smallest|tell if it is balanced]. [{lang}|{lang} solution|O(n) solution in {lang}]
[Turn|Make] the rule 'members of {place} pay half' into [a {lang} function|code|SQL].
Add [logging|a progress bar|retries|pagination|caching|unit tests|dark mode|a config file] to my {lang} [app|script|service] that {task}.
[Migrate|Upgrade|Move] my {fw} [app|project] [to the latest version|to TypeScript|to {fw}], show the changed files.
LaTeX: a table with {n} columns, merged header, numbers aligned at the point
[css|CSS]: [center a card vertically|two columns that collapse on phones|a gradient border|make the footer stick to the bottom|hide the scrollbar]
as a [data analyst|sysadmin|game dev|teacher], I keep doing by hand what a script could: it {task}. write it
Could you knock together [a little CLI|a bot|a browser extension|a bookmarklet|a macro|a userscript] that {task}?
[Discord|Telegram|Slack] bot that {task}[, {lang}|]
What would the [code|class|schema|function signature and body|config] look like if {place} wanted [online booking|a waiting list|loyalty points|reminders]?
[plot|draw|chart] [a sine wave|sales per month|temperature over time|a histogram of ages] in {fw}
[given|I have] df with columns {cols}, [how do I|i want to] [group by the first and average the second|pivot it|fill missing values|drop duplicates|join another frame]
implement [{alg}|a ring buffer|a trie|a thread pool|a tokenizer|an event bus|dijkstra|matrix multiplication|a rate limiter|a bloom filter|a state machine|JSON parsing] in {lang}
[assembly|asm] for [x86|ARM|RISC-V|6502]: [add two arrays|count set bits|print hello|reverse a string]
[Write|Give me] the [rules|file|settings|block] so that [my firewall only lets {svc} in|{svc} starts at boot|{svc} runs in a container|the router forwards {svc}].
""")

PROSE = lines(r"""
Explain {subj}[.| to me.| please.| to {aud}.| in detail.]
Tell me about {subj}.
[Write|Draft|Compose] [an essay|a blog post|an article|a report|a speech|a short text] [on|about] {subj}. 
Why does {subj} matter?
Describe {subj} to {aud}.
What should [a visitor to a museum|every citizen|a student] know about {subj}?
[Write|Tell me|Make up|Invent] a [short story|bedtime story|fairy tale|fable|scene|ghost story] [about|with|in which we meet] {thing}[ and {thing}|].
I have to give a talk about {subj}. Draft it.
[Give me the|What are the] arguments for and against [{subj}|teaching {subj} at school|{tech}].
Compare [two schools of thought on {subj}|{subj} and {subj}|{tech} with {tech} in plain words].
Summarise what historians say on {subj}.
{subj}?? explain pls
[explain|eli5] {subj}
Write [a letter|an e-mail|an email|a message|a complaint] to {whom} about {matter}[.|, friendly but firm.|, formal tone.]
[Draft|Compose|Help me write|I need] [a letter|a reply|an apology|a formal email] to {whom}: {matter}.
Plan a week of lessons on {subj} and describe each.
How did people come to understand {subj}?
Write a blog post about {tech}.
Explain {tech} to {aud}, without any code.
What are the pros and cons of {tech}?
[Tell the story of|How did we get to] {tech}?
Write an opinion piece [against|in favour of] {tech}.
How should a team of five introduce {tech}? Advise me.
Draft an e-mail to the developers that announces {tech}.
[In plain words, why|Why] do engineers argue about {tech}?
Prepare interview questions about {tech} and say what good answers sound like.
Describe {lang}'s place in the industry today.
Should I learn {lang} or {lang} first? Give me your reasoning.
Write a product announcement for a {lang} library that {task}.
Explain the idea behind a tool that {task}; no code, I only want to understand it.
what is {tech} and why do people [care|like it|hate it]
How does {tech} work? [conceptually|no code, just the idea|as if I were {aud}|I never studied computer science]
The difference between {tech} and {tech}, explained to {aud}.
A retrospective on how our team adopted {fw}: what went well, what hurt. Write it.
Why did {lang} become popular?
Write the introduction of a [book|thesis|course] on {tech}.
Compare how the {lang} and {lang} communities treat beginners.
Write release notes [in friendly words|for non-technical users] for an app that {task}.
Write a job advert for a {lang} developer at {place}.
Performance review for a {lang} developer who is [brilliant but late|new and eager|kind and slow]. Write it.
{snip}\n\n[Never mind the code above, w|Forget this. W|That is what I wrote today. Now w]rite [a diary entry|a letter to my team|a story] about {thing}.
What does working with {fw} feel like? [Write an honest essay.|I'd like a personal account.]
[Why|Why is it that] {why}?[| I'd like the full picture.| explain it to {aud}| My kid asked.]
how come {why}
[How do I|How can I|How to|what's the best way to|Tips to|any advice how to] {howto}[?|]
I {sit}. [What should I do?|Any advice?|Help me think it through.|Talk to me about it.|what now]
[I {sit} and feel stuck.|Lately I {sit}.] [Write me something encouraging.|How do others handle that?|What would you do?|]
Write a kind message to someone who says: I {sit}.
[Write|Compose] a [poem|ballad|song|sonnet|rap] about {thing}.
[Write|Draft] a speech for {occ}[.|, funny but warm.|, five minutes.]
[toast|speech|few words] for {occ}, [I'm nervous, make it warm|make them laugh and cry|about three minutes]
[Recipe for|How do you cook|How do I make|give me a recipe for] {dish}[?|, step by step|, for six people|]
[Plan|Describe|Write up] [three days|a week|a long weekend] in {trip} [for {aud}|on a budget|by train|with two kids].
What [is there to see|should I see|is worth doing] in {trip}?
itinerary {trip} {n} days
A column for the Sunday paper about {thing}.
[Write|Give me] a [review|critique] of [an imaginary film called '{thing}'|a {review} I disliked|a {review} that surprised me].
Write a dialogue between {thing} and {thing}.
Continue this [story|text|paragraph]: {parag}
[Rewrite this in a friendlier tone|Expand this into an article|Turn this into a speech|Rewrite this for {aud}|Make this more formal|Polish this text|Paraphrase this|Improve the flow]:\n\n{parag} {parag}
{parag}\n\n[What does the author mean, and what would you object?|Discuss.|Write a critical response.|Expand on this.|Continue with two more paragraphs.|Do you agree? Argue.|Explain this passage to {aud}.]
Translate the following [text|letter|paragraphs] into {tongue}:\n\n{parag} {parag}
[Summarise|Summarize|sum up] [the plot of|the life of|the ideas of] [Hamlet|{person}|Moby Dick|Don Quixote|The Odyssey|{person}'s work][.| in a page.| for {aud}.]
Who was {person} and [why is he or she remembered|what did they achieve|how did they change the world]? [Tell me the whole story.|]
Biography of {person}, [about 300 words|in three paragraphs|for {aud}].
In what ways did {person} influence [later generations|science|our daily life]?
What would {person} say about {subj}? Write it as a monologue.
How did {subj} change ordinary life?
what do [people|{aud}] get wrong about {subj}[, in your opinion|]
My view is that {why} because we are told so. Argue with me.
Think aloud about whether {place} should close on Sundays.
Press release: {place} gets a new roof.
Draft the [newsletter|annual report|mission statement page|welcome page] of {place}.
[Product description|Landing page copy|Sales text|Ad copy, two paragraphs,] for {product}.
Business plan for {product}[, just the narrative|, outline each section in full sentences|].
Marketing strategy for {product}.
[Cover letter|Motivation letter|Personal statement] for [a job at {place}|a {lang} developer position|a nursing course|an internship at a museum]
[Give|Write] a detailed [guide|tutorial without code|overview|explanation] on {howto2}.
Interview with {thing}, questions and answers.
Reflect on this line: '{proverb}...'. What does it teach?
[What happened|Tell me what happened] in {country} in the [1930s|1970s|19th century|middle ages|1990s]?
[Describe|Tell me about] the [culture|history|cuisine|geography|political system|economy] of {country}.
What is life like in {country} for {aud}?
What are the [causes|effects|consequences|main ideas|risks|benefits] of {subj}?
What do you think about {subj}? [Let's debate.|Convince me.|I disagree with it, argue.|]
List and explain [the main causes of|the stages of|five myths about|three theories on] {subj}.
[Prove|Show] that [the square root of 2 is irrational|there are infinitely many primes|the sum of angles in a triangle is 180 degrees] and explain every step in words.
Explain how to [solve a quadratic equation|do long division|compute a standard deviation|integrate by parts] to {aud}[, in words|].
is it [wise|a good idea|worth it] to [buy a house now|learn Latin|get a dog in a flat|quit without a new job|study philosophy|move abroad at sixty]? [thoughts?|Weigh it up for me.|pros and cons]
[Role-play|Pretend to be] [a pirate|a medieval monk|a tour guide|a grumpy librarian] and tell me about {subj}.
Help me understand {subj}.
I don't get {subj}. Teach me.
[study notes|notes|a lecture|handout] on {subj} for {aud}
essay: {subj} vs {subj}
describe [an autumn morning|a busy market|the sound of a storm|my grandmother's kitchen|a city at night] [in rich detail|so that I can smell it|as a novelist would]
give me a pep talk, I {sit}
LinkedIn post about {occ}
[character description|backstory|world building] for {thing}
Write the [first|opening|last] chapter of a novel about {thing}.
What's the story behind [the name of|the flag of|the founding of] {country}?
Outline a [documentary|podcast episode|lecture] about {subj} with a paragraph per part.
""")

SHORT = lines(r"""
What is the capital of {country}?[| {limit}]
capital of {country}[?|]
How many [minutes are in a week|grams in an ounce|days in a leap year|feet in a yard|bits in a byte|players in a football team|bones in the human body|continents are there|strings on a violin|letters in the Greek alphabet|legs does a spider have|seconds in a day|states in the USA|planets in the solar system|keys on a piano]?
Who {invent}?
[In which year|When|what year] {yearq}?
What is {n} [plus|times|minus|divided by|to the power of] {d}?
{n} [+|-|*|/|x|mod|^] {d}[|?| =| = ?]
{n} [+|-|*] {d} [+|-|*] {n}?
Which language [do most people speak|is official] in {country}?
What is the chemical symbol [for|of] {element}?
How do you say "{phrase}" in {tongue}?
"{word}" in {tongue}[?|]
translate '{phrase}' [to|into] {tongue}
{phrase} -> {tongue}
What is the [opposite|plural|past tense|comparative] of "{word}"?
How many [letters|vowels|syllables] does "{word}" have?
[spell|how do you spell] {word} [backwards|correctly]
Is {n} a prime number?
Is {n} [even|divisible by {d}|bigger than {d}]?
What [continent|time zone|hemisphere] is {country} [on|in]?
Round {n}.{d} to one decimal.
What is {d} percent of {n}?
{d}% of {n}
Give me [a synonym|an antonym|a rhyme|a fancier word] for "{word}".
[synonym|antonym|rhyme] for {word}[?|]
Which is [bigger|smaller], {n} or {d}?
Convert {n} {unit}.
{n} {unit}
What [day|month] [follows|comes before] [Monday|March|Friday|October|Sunday]?
What is the currency of {country}?
What's the [population|area|highest peak|national animal|dialling code|internet domain] of {country}?
What is the {superl} [in the world|on Earth|]?
{superl}?
Which port does {svc} use by default?
default port of {svc}
What does {acro} stand for?
{acro} stands for?
Is {lang} compiled or interpreted, in one word?
Which HTTP status means {httpq}?
What is {n} in [hexadecimal|binary|octal|roman numerals]?
Who created {lang}?
How many bits are in {n} bytes?
What file extension do {lang} programs usually have?
Does {lang} have [garbage collection|generics|pointers|a REPL|null]? yes or no
Which git command shows [the history|unstaged changes|who changed a line|all branches]? Just the command name.
What year was {lang} first released?
True or false: {lang} arrays start at index one.
What is the [worst-case|average] complexity of {alg}? Just the O().
Which flag makes ls show hidden files?
Which key leaves insert mode in vim?
name the default shell on macOS
comment sign in {lang}
{lang} or {lang}: which is older?
is {lang} [statically typed|older than {lang}|open source][?| y/n]
what is {acro}? [five words max|one line|in one short sentence]
[latest|current] [stable|LTS] version [number|] of {fw}?
[keyboard shortcut|shortcut] [for|to] [undo|save|reopen a closed tab|take a screenshot|find in page|switch windows] [in {fw}|on Mac|on Windows|]
which command [prints the working directory|lists files|shows my IP]? just its name
odd [word|one] out: {sets}
[Sort|Put in order], first one only: {sets}
Which of these does not belong: {sets}?
A name for [a cat who lives in {place}|{product}|my boat|a black puppy|a band of four dentists]?
[Title|Headline|slogan|Tagline|Motto|Hashtag] for {place}[, five words max|, one line|]
title for [a story about {thing}|a talk on {tech}|a post on {subj}], [max six words|one only|short]
hex code of [pure red|white|black|pure blue]
one emoji for {thing}
Is [Pluto a planet|a tomato a fruit|a whale a fish|zero even|glass a liquid|Scotland in the EU|water wet|a spider an insect|the sun a star|tea acidic]?
[Does|Did|Can|Is|Was|Will] [{country} have a coast|penguins fly|{person} ever marry|a cat see in the dark|snow fall in {city}|sharks sleep|{country} a kingdom|it safe to eat raw eggs|dogs eat grapes|{country} drive on the left|honey go bad|{person} alive in 1800]?[| {limit}]
Did {person} live before {person}? y/n
[Birth year|nationality|profession|first name] of {person}?
When was {person} born?
Where [was {person} born|is {city}|do kangaroos live|does the Danube end|is the Louvre|are the Carpathians]?
what time is it in {city} when it's noon in {city}
How [far|long|tall|old|heavy|deep|fast] is [the moon|Mount Everest|the Nile|the Eiffel Tower|a blue whale|the universe|the Mariana Trench|light|a marathon|an elephant]?
how long do [I boil eggs|cats live|elephants carry a calf]? just a number
boiling point of {element}
atomic number of {element}
[Classify the sentiment|positive, negative or neutral?|Sentiment of this review, one word|Is this happy or angry?]: "{mail}"
"{mail}" [Sentiment?|spam or not?|Is this urgent, yes or no?|Which number is the code?|Extract the reference.|Who is named? Name only.|Return just the day.|In one word: the topic?|Sort into: booking, complaint, other.|How does the writer feel, one word?]
[Extract the date|Give me only the reference|Pull out the amount|Which name occurs|What is the order number|Topic in one word|Label as spam or ham] from: {mail}
{mail}\n\n[Sentiment?|Category: booking, complaint or other?|who wrote it|reference only|how many days?|urgent? y/n|one-word summary|which city?]
{parag}\n\n[One-word topic?|Title, at most five words.|Is the tone positive? yes/no|Summarise it in one sentence.|Which single word matters most?|How many sentences? Number only.|true or false: it mentions a year|tl;dr in one line|Who is the main person? Name only|Pick a headline]
[Give this a title of at most five words|One-sentence summary|tl;dr one line|Which language is this|What is it about, two words|Name the place it mentions, nothing else]: {parag}
[Correct the grammar|Fix the mistake|Correct this sentence|grammar check|proofread]: {sent}
[Make this sentence passive|Rephrase in one sentence|Say it more politely, one sentence|Make it a question|Put into past tense|shorten]: {sent}
Translate to {tongue}: {sent}
[translate|how would one say]: "{sent}" ({tongue})
Is this sentence correct? "{sent}" [yes or no|]
Complete the proverb: {proverb} ...
{proverb}... how does it go on?
{eval}\n[Output?|What is the value?|what does it print|result, digits only|evaluates to what]
[what does `{evalc}` return|`{evalc}` = ?|result of {evalc}|Value of {evalc}?|does {evalc} throw? y/n]
{snip}\n\n[Which language is this? One word.|What is the name of the function? Name only.|Is this {lang}? yes/no|How many lines is that?|Is there a loop? yes or no.|In five words at most: purpose?|time complexity? just O()|does it return anything? y/n|How many parameters? Just the number.|What's the return type? type only]
[which language is this|name of the function, nothing else|recursive? yes or no|what would it print for {n}? only the output|one-word answer: is it thread safe|language?]\n\n{snip}
{trace}\n\n[Which line number? Just the number.|Which file? Name only.|In one word, what kind of error?|which module is missing? name only|transient or permanent? one word]
[Explain|Define|Describe|what is] [{subj}|{tech}] [in one sentence|in ten words or fewer|in a single short line|in three words]. 
{subj} in one sentence[, no more|]
[{tech}|{subj}]: [true|myth] or [false|fact]? one word
Answer with A, B or C. The {superl} is A) [Nile|Everest|Vatican] B) [Amazon|K2|Monaco] C) [Yangtze|Lhotse|Malta]
Multiple choice: Who {invent}? a) {person} b) {person} c) {person}
Quiz: what is the capital of {country}? (a) {city} (b) {city}
If a train goes {n} km in {d} hours, what is its speed?
[{name}|Anna|Ben] has {n} apples and gives away {d}. How many are left?
A shirt costs {n} euros, {d}% off. Price?
{n} people share {n2} sweets, how many does each get?
x + {d} = {n}, x?
Solve for x: {d}x = {n}
next number: {d}, {d2}, {d3}, ...?
average of {n}, {d} and {n}
area of a [circle with radius {d}|square with side {n}|rectangle {n} by {d}]
[hi|hello|hey|good morning|yo|hey there|good evening|hiya][|!| there| :)|, how are you?| 👋]
[thanks|thank you|thx|cheers|ok thanks|great, thank you|perfect]![| that's all| bye| you're the best]
[are you there|you up|still awake|can you hear me|are you a bot|who are you|what's your name|how are you|how old are you|do you speak {tongue}|ready][?|??]
[ok|yes|no|nope|sure|cool|lol|nice|hmm|test|ping|bye|good night|never mind|got it]
[coin flip|flip a coin|roll a die|pick a number between {d} and {n}|choose: tea or coffee|heads or tails|red or blue|rock paper scissors: rock]
[Say no to {whom} politely|A one-line out-of-office note|A one-line reply to {whom}|SMS to {whom}: running {n} minutes late], one sentence
[Rate|score] the idea of {product} from 1 to 10. Digit only.
Is {product} a good gift? one word
[first|last|third] letter of '{word}'
{word}: noun, verb or adjective?
'{word}' - [correct spelling?|british or american?|formal or slang?]
What do you call [a baby goose|a group of lions|a female fox|someone who collects stamps|a ten-sided shape|the fear of spiders|a word that reads the same backwards|the study of birds]?
[which|what] [planet has rings|gas do plants breathe in|metal is liquid|animal is the tallest|vitamin do we get from sun|ocean is warmest|colour do red and blue make|instrument has 88 keys|blood type is universal donor]?
Name [a|one|any] [river in {country}|noble gas|{lang} web framework|king of {country}|mammal that lays eggs|city in {country}|author from {country}|NoSQL database|card game for two].
[list|name] three [colours|fruits|rivers|primes|JS frameworks|cities in {country}], comma separated, nothing else
How many people live in {city}? [roughly|]
is it [Tuesday|spring|a holiday] in {country} today?
which [team|club] is from {city}? name one
[{n}:00|{d}pm] [GMT|CET|EST] in {city} time?
[days|weeks|years] between [1990 and 2020|May 3 and June 9|Christmas and Easter]?
[max|smallest|sum] of {n}, {d}, {n}
[area code|zip code|airport code|country code] of {city}
[Yes or no|true/false|t or f]: {why}.
a word that rhymes with {word}
{lang}: [zero or one based|tabs or spaces by convention|who made it]?
acronym for '{phrase}'
translate {word}: {tongue}, {tongue}
What animal says [moo|ribbit|woof]?
fill in the blank: [The sun ___ in the east.|I have ___ (see) it.|She is ___ than me (tall).|Water boils at ___ degrees.]
what's the [ticker|founder|headquarters] of [Apple|Toyota|Siemens|Netflix|Ikea]?
[best|cheapest|nearest] [month to visit|airport to|way to say hi in] {city}? one word
""")

# follow-ups that mean something only after an earlier turn; (class, earlier user turn class, text)
FOLLOW = [("code", "code", s) for s in lines(r"""
[now in|same in|port it to|and in] {lang}[?| please|]
add [tests|comments|error handling|a docstring|logging|type hints]
it fails with `{err}`
that doesn't work, I get {err}
make it [faster|shorter|async|recursive|a class|a one-liner]
without [libraries|recursion|the regex|loops]
can you explain the second line?
what if the [file|list|input] is empty? handle that
now read the name from the command line
refactor it into two functions
use {fw} instead
how do I run it?
great, now also the Dockerfile
the output should be JSON
""")] + [("prose", "prose", s) for s in lines(r"""
make it [longer|warmer|more formal|funnier|sadder|less stiff|simpler]
continue
go on, I want more
another one, about {thing}
tell me more about the second point
more detail please
now the same for {subj}
rewrite it for {aud}
and what are the counter-arguments?
why is that? explain further
Expand the ending.
can you elaborate
what happened next?
Now turn that into a letter to {whom}.
""")] + [("short", "short", s) for s in lines(r"""
and of {country}?
and {country}?
in {tongue}?
and {n}?
times {d}?
are you sure?
what about {person}?
same for {element}
plus {d}
and the year?
who was it again? name only
ok and in kilometres
which one is bigger
""")] + [("prose", "code", s) for s in lines(r"""
Nice. Now write a blog post about how we got there.
Great, thanks. Explain to my manager why this matters, no code.
Works! Draft an email to the team announcing it.
ok. Different topic: explain {subj}
Good. Write the release announcement in friendly words.
""")] + [("short", "code", s) for s in lines(r"""
Does it work on Windows? yes or no
what is its complexity, just O()
which version of {lang} does it need? number only
thanks!
perfect, thank you
one-line commit message for that
What would you call this file? just a name
how many lines is that
""")] + [("code", "prose", s) for s in lines(r"""
Interesting. Now write a {lang} script that {task}.
ok, back to work: {lang} function that {task}
Put that into an HTML page with a stylesheet.
Now a {conf} for {place}, please.
turn that list into a {lang} array of objects
""")] + [("short", "prose", s) for s in lines(r"""
Give that a title, five words max.
In one sentence please.
thanks, that's all
tl;dr one line
How many words was that? number
When was that? just the year
ok. capital of {country}?
Who said that? Name only.
""")] + [("code", "short", s) for s in lines(r"""
thanks. Now write a {lang} program that {task}
ok, how would I compute that in {lang}? code please
and a {lang} function for it
Formula for that in Excel?
""")] + [("prose", "short", s) for s in lines(r"""
Why? Explain in detail.
tell me the history of that
Interesting! Write a paragraph or two on how that came about.
How does that work? I want the full story.
who was that? tell me about their life
""")]
