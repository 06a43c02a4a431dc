"""More templates of the kinds that a first scorer got wrong: instructions with an input, search-like code requests,
everyday plans and lists, one-word questions about code; and more of the languages that were weak (all of it ours)."""
from data_en import LISTS, items, lines

LISTS.update(
    sq=items("reverse a string|sort dict by value|read csv|remove duplicates from list|merge two dicts|current date|random number between 1 and 10|list files in folder|check if file exists|convert string to int|sleep for 5 seconds|parse json|http get|flatten list|split by comma|round to 2 decimals|enumerate loop|ternary|lambda example|try catch|read env variable|write to file|capitalize first letter|unique values|count occurrences|find max index|zip two lists|string contains|deep copy|timer|regex replace|binary search|fibonacci|fizzbuzz|factorial|prime check|palindrome|bubble sort|linked list|queue with two stacks|matrix transpose|levenshtein|hello world|decorator example|generator example|singleton|event listener|debounce|fetch with timeout|upload file|send email|cron every 5 minutes"),
    csssq=items("center div|sticky footer|two columns|rounded corners|hover effect|gradient text|hide scrollbar|full height section|dark mode|print stylesheet|rotate image|tooltip|flex gap|responsive grid|truncate text with ellipsis|blinking cursor|custom checkbox"),
    sqlsq=items("remove duplicate rows|second highest salary|join three tables|group by month|running total|rows not in other table|pivot|upsert|recursive query|top n per group|add column with default|find nulls|case insensitive search|last 7 days|count distinct|rank with ties|split string|json field"),
    xlsq=items("count unique|vlookup from another sheet|remove spaces|sum if green|last non-empty cell|weekday name|combine first and last name|days between dates|highlight duplicates|drop-down list|percent change|nested if|convert text to number|first monday of month|index match|split full name|random sample|age from birthday"),
    topic=items("sports|politics|business|science|travel|food|fashion|health|technology|music|crime|weather|education|gardening|film"),
    labels=items("positive, negative, neutral|spam, not spam|booking, complaint, question|sports, politics, business, science|urgent, normal, low|fruit, vegetable, animal|fact, opinion|question, statement, order|A, B, C, D|happy, sad, angry, afraid|event, news, advert|electronics, clothing, books, toys|relevant, not relevant|true, false|agree, disagree|formal, informal|one star, two stars, three stars, four stars, five stars|past, present, future|person, place, thing"),
    tweet=items("""Just landed in {city}, can't wait for tomorrow!|New album out on Friday, pre-order now.|Why is the {review} I bought yesterday already broken?|Our team beat {city} 3:1, what a night|The minister resigned this morning after a long debate.|Is anyone else's internet down?|Scientists found water on a distant planet.|50% off all shoes until Sunday|I think {subj} is overrated.|I want to cancel order {ref}, please.|Where is my parcel? It should have come {d} days ago.|Thanks for the quick help, {name}!|The {review} is fine, nothing special.|Can I change the date of my booking to the {d}th?|Prices rose by {d} percent in {country}.|Lovely place, rude waiter, cold soup.|How do I reset my password?|You have won a voucher, click here|Meeting at {d} in room {n}|My flight {ref} was late again"""),
    passage=items("""{name} was born in {city} in {n2}. At the age of {d} the family moved to {country}, where {name} opened a small shop. {parag}|The museum in {city} opened in {n2} and holds {n} objects. {parag}|{parag} The bridge is {n} metres long and was finished in {n2}.|On the {d}th of May {name} sold {n} tickets for {d2} euros each. {parag}|{name}: When do we meet?\n{name}: Tuesday at {d}, in {city}.\n{name}: Fine, I bring the {thing}.|This agreement is made between {name} and the {review} company of {city}, for {n} euros a month, starting on the {d}th. {parag}"""),
    fact2=items("an invoice number|the date|all names|the city|the amount|the two parties|the year|the price|the time and place|every number|the product|the main character"),
    plan=items("a weekly meal plan|a grocery list for a healthy week, with reasons|a workout plan for beginners|a study schedule for finals, explained|a packing guide for a trek|a budget plan for a student|a cleaning routine for a family of four|a garden plan through the seasons|a bedtime routine for a toddler|a 30-day running plan|an onboarding plan for a new colleague|a treasure hunt for six children|a reading programme for the summer|an agenda with notes for each point"),
    copy=items("Instagram caption with a story|product description|fundraising letter|about-us page|back cover text|podcast intro|event invitation of two paragraphs|wedding website welcome text|press statement|job posting|dating profile|Airbnb listing|eulogy|newsletter|user manual chapter in plain words|film script scene|play in one act|stand-up routine|radio advert script|voice-over script|sermon|horoscope for every sign|travel blog entry|diary of a week|acceptance speech|debate opening|letter of recommendation|apology to all customers|crowdfunding pitch"),
    snipq=items("which language|language? one word|name of the function only|how many arguments|does it compile? y/n|what's printed? output only|returns what, for input {d}? value only|is it recursive? yes/no|Big O? just that|how many loops? number|which variable is never used? name only|is this thread-safe, yes or no|what type is the result? one word|what line has the bug? number only|Does this print anything? yes or no|is it valid syntax? yes/no|Name the design pattern. One word.|In which year could this have been written first? number|true or false: it mutates its argument|one word: what does it compute|Which library is imported? name only|what is the value of x at the end|final value?|how often does the loop run? number|what would you rename it to? one name"),
    snipc=items("why is this slow|what's wrong|doesn't work for negative numbers|how can I shorten this|give me a version with {fw}|wrap it in a class|make it generic|add comments|what does every line do|I get {err}|write the inverse|turn into a CLI|extend it to two dimensions|make it testable|why does it print None|use a dictionary instead|can this be a one-liner|remove the global|convert to {lang}|complete it|the loop never ends|is there a cleaner way|show a safer version|protect against injection|translate the comments and rename the variables"),
)

CODE = lines(r"""
{lang} {sq}
{sq} [in|with|using] {lang}[?| please|]
how to {sq} {lang}
{lang}: {sq}[?|, shortest way|, idiomatic|, without libraries|]
css {csssq}
{csssq} [css|in css|with tailwind|pure css]
[sql|postgres|mysql|sqlite|bigquery] {sqlsq}
{sqlsq} [sql|in postgres|t-sql]
[excel|google sheets|libreoffice] {xlsq}
{xlsq} [excel|in sheets] [formula|?|]
git {gitdo}
[bash|linux|powershell|zsh]: {shelldo}
{snip}\n\n{snipc}
{snipc}[:|?]\n\n{snip}
{snip}\n{snipc}
Complete the [code|function|snippet]:\n{snip}
Fill in the missing part of this [HTML|config|function]: {codefrag}
Generate [a regular expression|the regex] based on the description: {pattern}
[Translate|Turn] the question into SQL: Which {place} had more than {n} visitors in {n2}?
Parse this into [JSON|a Python dict|YAML|a struct]: name {name}, city {city}, age {d}
[Given|You are given] [an array of integers|a string s|two sorted lists|a binary tree|a grid], [return|write a function that returns] [the k largest|all permutations|the longest palindrome|the sum of the path|whether it is valid].
Input: {n} {d}\nOutput: {n}\nWrite the program in {lang}.
Write pseudocode for [sorting a deck of cards|a lift controller|a vending machine|matching pairs in a dance class].
My {place} needs a website: [landing page in HTML|the HTML and CSS for the menu|a booking form with validation].
script [to|that will] [rename|convert|compress|download|sort|tag] [my pictures|all mp3s|the invoices|old backups] [automatically|every week|by date|in one go]
[automate|macro for] [copying every second row to another sheet|sending the report on Fridays|merging all PDFs in a folder|sorting my inbox]
what do I have to type to {shelldo}
[nginx|apache|docker|systemd|k8s|terraform|ansible|cron|ssh|iptables|tmux|vim|postfix|samba] [config|setup|file|snippet] for {place}
why does `{codefrag}` [fail|throw|not compile|return undefined|loop forever]?
[is there a way|can I|how would one] to {react} when {event}, in {lang}?
[write|give me] a [test|mock|fixture|benchmark|migration|seed script|linter rule|type definition|interface|enum|struct] for {codefrag}
[one-liner|alias|function for my shell] to {shelldo}
[latex|markdown|html|mermaid|graphviz|plantuml|svg|tikz] [table|diagram|code] for [our org chart|a login flow|a family tree|a timetable|a truth table]
port `{codefrag}` to {lang}
The assignment says: {task2}. [My attempt|What I have]:\n{snip}
{lang} homework: {task2}. no idea where to start
""")
LISTS["task2"] = items("read ten numbers and print the largest|draw a triangle of stars|simulate a bank account|count vowels in a sentence|print the multiplication table|guess a number between 1 and 100|convert roman numerals|check a password|build a phone book|roll two dice a thousand times|compute the average of a file of marks|reverse the words of a sentence|play hangman|find all primes below a limit|sort names by length|implement a stack")

PROSE = lines(r"""
[Write|Draft|Create|Compose] [a|the] {copy} for {place}.
[Write|Draft|Create] a {copy} [about {thing}|about {subj}|for {product}].
{copy} for {product}[, please|, funny|, warm tone|]
Make {plan}[ for {aud}|].
[I need|Give me|Put together|Design] {plan}.
[Solve|Work out] step by step and explain each step in words: [a train leaves {city} at {d}, another at {d2}; when do they meet|how much paint do I need for {n} square metres|what is the chance of two sixes in {d} rolls].
Show [all steps|your reasoning]: is {n} times {d} bigger than {n2}? Explain as to a pupil.
Expand the [sentence|idea|outline] into a [text|chapter|scene]: {sent}
Given the facts, write a [story|report|dialogue|news article]. Facts: {name}, {city}, {d} degrees, {thing}
Compare [{city} and {city}|{dish} and {dish}|{product} and {product}|living in {country} with living in {country}][ for {aud}|, pros and cons of each|].
Read this and [tell me what you make of it|comment on it at length|write an answer|argue against it]:\n\n{passage}
{passage}\n\n[Write a reply to this.|Turn it into a newspaper article.|What are the consequences? Discuss.|Retell it as a fairy tale.|Explain the background for {aud}.]
What can I cook [with|from] [eggs and spinach|chickpeas|leftover rice|two courgettes|half a pumpkin] [tonight|for six|without a stove]? [Describe how.|Full recipe.|]
Suggest [activities|games|outings] for {aud} in {city} and say why each is worth it.
Recommend [books|films|series|podcasts] for {aud} and describe each.
Explain the meaning of [the saying|the phrase] "{proverb}..." with an example.
Explain the difference between [affect and effect|weather and climate|a virus and a bacterium|stocks and bonds|empathy and sympathy|a lake and a pond|ethics and morals|jam and marmalade|viola and violin].
[What's the difference between|difference between] [a barrister and a solicitor|ale and lager|Sunni and Shia|latin and greek drama|cement and concrete|an alligator and a crocodile]?
What happens [if|when] [you stop sleeping|a star dies|interest rates fall|you eat only meat|the ice melts|bees die out|you leave the EU]? 
My {whom2} [is angry with me|forgot my birthday|wants to move in|keeps interrupting me|has lost a job]. How do I handle that?
Tell [me a joke and explain why it is funny|a long shaggy-dog story|a campfire story about {thing}].
How [would|did|do] [a bee see the world|sailors navigate before GPS|medieval people keep food fresh|blind people dream|cats find their way home|trees talk to each other]?
Imagine [you are {person}|a world without {subj}|it is the year 2200]. [Describe a day.|Write your diary.|What changes?]
user story and acceptance criteria, in words, for {place}
Write the [rules|house rules|code of conduct|FAQ|welcome letter|history page] of {place}.
Draft [minutes|a summary|talking points|a proposal|a SWOT analysis|a status update] for [a meeting on {tech}|the board of {place}|our plan to adopt {fw}].
Explain {fw} to [someone who never programmed|a recruiter|a lawyer][, no code|].
Why do [companies|teams|startups|banks] [choose|leave|fear|love] {lang}?
History of {lang}[, in a few paragraphs|].
Is {lang} still worth learning? [Discuss.|Your opinion, with reasons.|I am {d2} years old and want to change careers.]
What makes code readable? [An essay.|Write about it without showing any.|Philosophical answer please.]
How do I [tell my boss|convince my team] that {tech} [matters|is a mistake|needs time]?
Write a [LinkedIn post|farewell mail|toast] for a [developer who leaves|tester who retires|release that took two years].
I {sit}. Write the mail for me to {whom}.
""")
LISTS["whom2"] = items("mother|best friend|flatmate|boss|sister|neighbour|teenage son|colleague|partner|landlady|father-in-law")

SHORT = lines(r"""
Classify the [text|tweet|message|review|sentence] into one of these categories: {labels}.\n\n{tweet}
[{labels}?|Choose from {labels}:|Label ({labels}):] {tweet}
{tweet}\n[Category: {labels}.|{labels}?|Which of {labels}?|Label it: {labels}]
Decide whether the [statement|tweet|review] is [about {topic}|sarcastic|an advert|a complaint]. Output [yes or no|true or false].\n{tweet}
Predict the [rating|number of stars|intent|mood|topic] [from|of] the following text: {tweet}
Intent of the user, one of: {labels}. Text: {tweet}
Extract {fact2} from the [text|paragraph|conversation|contract].\n\n{passage}
{passage}\n\n[Extract|Give|Return] {fact2}[.|, nothing else|; separate by semicolons]
{passage}\n[Who is it about? Name.|When? year only|Where does it happen? one word|How many? number|What is the price?|How much money in total? number|In which city?|Which year is mentioned?|Is the text about {topic}? y/n]
Answer the question from the text. [Who|Where|When|How many|How much]?\n\n{passage}
[Rewrite|Rephrase] the [following|given] sentence [more politely|in the passive|as a question|to be more professional|in simple words|in past tense|without the comma]: {sent}
{sent} -> [past tense|plural|negative|question|passive|formal]
[Grammar check|Correct the errors]: {sent}
[Give|Suggest|Choose|Pick] [a title|a headline|a subject line|a hashtag|one keyword] for [this text|the post]: {passage}
[Sort|Order] [the list|these numbers|the words] [ascending|alphabetically|descending|by length]: {n}, {d}, {n2}, {d2}
[List|Numbers]: {n}, {d}, {n2}. [Largest?|Sum?|Median?|How many are even?|Range?]
Which [genre|decade|country|author] does [Love in the Time of Cholera|Dune|The Trial|Emma|Dracula|Moby Dick|Persepolis] belong to?
[Which film|Name the movie|what's the song]: [a shark attacks a beach town|a boy sees dead people|a robot cleans an empty Earth|toys come alive|two lovers on a sinking ship]
[Calculate|compute|work out] [a {d}% tip on {n} dollars|VAT of {d} percent on {n}|the area of a {n} by {d} room|{n} squared|the mean of {n}, {d} and {n2}]
{d}% tip on ${n}?
[if today is|when it is] [Tuesday|the 3rd of May], what [day|date] is it in {d} days?
{name} is {d2} and {name} is {d} years older. [How old is {name}?|Sum of their ages?]
Complete the sentence[ with one word|]: [The capital of {country} is|She was so tired that|Time flies like|The opposite of {word} is|All roads lead to]
[Fill the gap|Fill in the blank|Missing word]: [He ___ to school every day.|They have ___ here since {n2}.|The {word} was on the ___.|{person} was a famous ___.]
{snip}\n\n{snipq}
{snip}\n{snipq}
{snipq}[:|]\n\n{snip}
`{codefrag}` - {snipq}
{codefrag}: {snipq}
[What does|what will] `{evalc}` [print|return|give|evaluate to]?
[output of|result:|value of] {eval}
error `{err}`: [which language is that from? one word|client or server side? one word|fatal, yes or no]
[which|what] [git|docker|kubectl|npm|pip|systemctl] [command|subcommand] [lists branches|shows containers|lists pods|installs a package|shows the status]? [just the command|name only|one word]
[What's the|name the] [file extension|package manager|mascot|inventor|release year|latest major version|website|licence] of {lang}?
which is [faster|older|newer|more popular], {lang} or {lang}? one word
does {fw} [run on Windows|cost money|support ARM|use {lang}]? [y/n|yes or no]
is [null|zero|NaN|an empty list] [truthy|equal to itself|falsy] in {lang}? [y/n|yes or no]
[who|which company] [makes|maintains|created|owns] {fw}?
[port|default user|config file name|default branch] of {fw}? 
[HTTP|status code] for {httpq}[?| number only|]
{acro} [full form|meaning|= ?|long form please]
[A|One] [name|nickname|username|domain name|slogan|motto|pun] for {product}
[best|one] emoji for [{word}|sad|a party|{subj}]
yes or no: [should I go to bed now|is it going to be fine|do I need a visa for {country}|can I freeze {dish}|does {dish} contain gluten]
how many [calories in an egg|ml in a cup|weeks till Christmas|time zones in {country}|languages are spoken in {country}|strings has a harp|players in a water polo team|hours from {city} to {city} by plane]?
[translate|how do you write|what is] "{phrase}" [to|in] {tongue}[?|, only the translation|]
{tongue} for {word}
word for [fear of heights|a baby kangaroo|someone who talks too much|the day after tomorrow|the smell of rain]?
[random|pick a] [number|colour|name|letter|card|country]
[a or b|this or that]: {dish} or {dish}?
[{name} said: |]"{sent}" [Is that passive? yes/no|How many words?|Which tense? one word|Subject of the sentence?]
[what day is it|what year is it|who won|any news|you ok|still there|what's up|how's it going|who made you|which model are you|can you see images|do you remember me]?
[nice to meet you|long time no see|just saying hi|see you later|good job|well done|sorry|my bad|no worries|haha|ok great|got it, thanks|sounds good|that worked|perfect, that's all]
""")

LANG = {
    "ru": (r"""
{lang} {sq}
{snip}\n{snipc}
команда linux: [найти большие файлы|удалить пустые папки|посмотреть открытые порты]
[Нужен|Сделай] [регулярку|скрипт|запрос|макрос] [для даты|чтобы чистить логи|чтобы переименовать фото|для отчёта по продажам]
[Прога|Код] на {lang} выдаёт {err}, что поправить?
[вёрстка|html]: [форма входа|меню|таблица цен]
""", r"""
[Сочинение|Эссе|Реферат|Доклад] [на тему|о том, что такое|:] [«{subj}»|{subj}]
Почему [небо синее|люди зевают|осенью желтеют листья|растут цены|случилась революция]?
Как [похудеть|подготовиться к экзамену|помириться с другом|выбрать щенка|пережить расставание]?
Что ты думаешь про {subj}?
[Объясни|Расскажи] [ребёнку|бабушке|новичку], что такое {subj}.
Поздравление [маме на юбилей|коллеге с выходом на пенсию|на свадьбу], [длинное и тёплое|в прозе]
[Сравни|Чем отличаются] [Москва и Петербург|кошки и собаки|капитализм и социализм]?
{parag}\n\n[Продолжи рассказ.|Что хотел сказать автор?|Напиши ответ.]
""", r"""
[Столица|Валюта|Население] {country}?
[Сколько|Чему равно] {n} [*|+|-|/] {d}
[Когда|В каком году] [началась Первая мировая|отменили крепостное право|умер Пушкин]?
«{word}» по-[английски|немецки]
{parag}\n\n[О чём текст? Одно слово.|Заголовок до пяти слов.|Настроение: плюс или минус?]
[спасибо|ясно|понял|да|нет|ага|приветик|доброй ночи|ты бот?]
Какой порт у {svc}? [только число|]
{snip}\n[что выведет? только ответ|какой язык?|сложность? только O()]
"""),
    "uk": (r"""
{lang} {sq}
{snip}\n{snipc}
Програма на {lang} видає {err}, [що виправити?|допоможи]
Формула Excel, щоб [порахувати дублікати|додати лише сплачені рядки]
Зроби скрипт, який {task}.
Регулярний вираз для [номера телефону|дати|індексу]
""", r"""
[Твір|Есе|Доповідь] [на тему|про] {subj}
Що таке {subj}? Поясни [докладно|простими словами|дитині].
Напиши листа до {whom} про [шум|рахунок|звільнення].
Чому [падає листя|ми спимо|зростають ціни|небо блакитне]?
Які плюси й мінуси [життя в селі|дистанційної роботи]?
Як [схуднути|підготуватися до іспиту|знайти друзів у новому місті]?
Розкажи історію [Києва|козацтва|вишиванки].
{parag}\n\nПродовж розповідь.
""", r"""
Столиця країни {country}?
{n} [плюс|мінус|помножити на] {d}?
«{word}» [англійською|німецькою]?
[привіт|дякую|так|ні|добраніч|зрозуміло|ти бот?]
Скільки [днів у році|грамів у кілограмі|областей в Україні]?
Хто [намалював Мону Лізу|винайшов радіо]?
{snip}\n[яка це мова?|що виведе? лише відповідь]
Що означає {acro}?
Який порт у {svc}?
"""),
    "zh": (r"""
{lang} {sq}
{snip}\n{snipc}
{lang}怎么[读取文件|排序字典|发送请求|连接数据库]
[写个|帮我写|来一个][爬虫|脚本|正则|宏|小程序|网页],[抓取标题|自动改名|匹配日期|做倒计时]
[css|html][居中|两栏布局|悬停效果]怎么写
""", r"""
怎样[存钱|减肥|交朋友|准备考试|面试|学做饭]?
[在家工作|核能|独生子女|网购]有[哪些优缺点|什么利弊]
[谈谈|说说|聊聊]{subj}
[为什么|怎么会][下雨|打哈欠|物价上涨|树叶变黄]?
写[一封感谢信|一份检讨书|一篇读后感|一段自我介绍|一个睡前故事]
[比较|对比]一下[北京和上海|猫和狗|中医和西医]
{parag}\n\n[续写这个故事。|作者想表达什么?|写一段评论。]
[给我|制定]一个[减肥计划|学习计划|旅游攻略|一周菜谱],详细一点
""", r"""
{country}[首都|的货币|人口]
{n}[+|-|*|/]{d}
“{word}”[英文|怎么读|几画]
[哪一年|什么时候][香港回归|二战结束|唐朝建立]
{parag}\n\n[一句话概括。|标题,五个字以内|褒义还是贬义?]
{snip}\n[输出是什么?只写结果|什么语言]
[在吗|嗯|好|谢谢你|没事了|你是机器人吗|几点了]
{acro}是什么意思?[一句话|四个字|]
{svc}端口号?
"""),
    "tr": (r"""
{lang} {sq}
{snip}\n{snipc}
{lang} kodum {err} veriyor, [düzelt|neden?]
[Bana|Lütfen] {task} [bir betik|bir araç|bir program] yaz
""", r"""
[{subj} nedir|{subj} hakkında bilgi ver], [ayrıntılı|uzun uzun|bir sayfa]
{whom} bir [mektup|e-posta] yaz: [gürültü|fatura|istifa|teşekkür]
[Nasıl kilo veririm|Sınava nasıl çalışmalıyım|Arkadaşımla nasıl barışırım]?
[Neden yapraklar sararır|Neden esneriz|Enflasyon neden artar]?
""", r"""
{svc} hangi portu kullanır? [sadece sayı|]
{acro} [açılımı|ne demek]?
[selam|tamam|teşekkürler|iyi geceler|evet|hayır|sen kimsin]
{n} [+|-|*|/] {d} = ?
[En uzun nehir|En yüksek dağ|En kalabalık ülke] hangisi?
"""),
    "ar": (r"""
{lang} {sq}
{snip}\n{snipc}
الكود بلغة {lang} يعطي {err}، أصلحه
""", r"""
[ما هو|ما هي] {subj}؟ [اشرح بالتفصيل|تحدث بإسهاب]
[كيف أخفف وزني|كيف أذاكر للامتحان|كيف أدخر المال]؟
اكتب خطبة [لحفل زفاف|لوداع زميل]
لماذا [ترتفع الأسعار|نتثاءب|تصفر الأوراق]؟
""", r"""
ماذا تعني {acro}؟ [باختصار|جملة واحدة|]
[أطول نهر|أعلى جبل|أكبر دولة] في العالم؟
{n} [+|-|*] {d}
[نعم|لا|تمام|شكرا لك|من أنت؟|أهلا]
منفذ {svc}؟ رقم فقط
"""),
    "id": (r"""
{lang} {sq}
{snip}\n{snipc}
Program {lang} saya error {err}, perbaiki
""", r"""
Apa itu {subj}? [Jelaskan panjang lebar|Tolong rinci]
[Bagaimana cara menurunkan berat badan|Kenapa harga naik|Kenapa daun menguning]?
Surat untuk {whom} soal [kebisingan|tagihan|pengunduran diri]
""", r"""
{n} [+|-|x] {d} berapa?
[hai|makasih|oke|iya|tidak|selamat malam]
Sungai terpanjang di dunia?
{svc} pakai port berapa?
{subj}, satu kalimat saja.
"""),
}
for _code, _text in (("de", "Wie nimmt man am besten ab?|Warum gähnen wir?|Was unterscheidet Bier und Wein?|Hilf mir, mein Bewerbungsgespräch vorzubereiten."), ("fr", "Comment maigrir sainement ?|Pourquoi bâille-t-on ?|Quelle différence entre un lac et un étang ?|Aide-moi à préparer un entretien."),
                     ("es", "¿Cómo adelgazo sin pasar hambre?|¿Por qué bostezamos?|¿En qué se diferencian el vino y la cerveza?|Ayúdame a preparar una entrevista."), ("pt", "Como emagrecer com saúde?|Por que bocejamos?|Qual a diferença entre lago e lagoa?"), ("it", "Come dimagrire bene?|Perché sbadigliamo?|Che differenza c'è tra lago e stagno?"),
                     ("pl", "Jak schudnąć?|Dlaczego ziewamy?|Czym różni się wino od piwa?"), ("ja", "どうすれば痩せますか?|なぜあくびが出るの?|ビールとワインの違いは?"), ("ko", "어떻게 하면 살이 빠질까요?|왜 하품을 하나요?"), ("hi", "वज़न कैसे घटाऊँ?|हम जम्हाई क्यों लेते हैं?"), ("nl", "Hoe val ik af?|Waarom gapen we?"), ("sv", "Hur går jag ner i vikt?|Varför gäspar vi?")):
    LANG[_code] = ("{lang} {sq}\n{snip}\\n{snipc}\n{codefrag}: {snipc}", _text.replace("|", "\n"), "{n} [+|-|*|/] {d}\n{snip}\\n{snipq}\n`{evalc}` = ?\n{acro}?\n{country} [?|- km2?]")
