"""Templates and word lists in other languages (all of it ours). Slots as in data_en.py; a list that a language has
itself (subj, task, thing, country, word, whom, parag, limit, long) is taken before the English one."""
from data_en import items, lines

L = {}


def lang(code, code_t, prose, short, hi="|", **lists):
    L[code] = dict(code=lines(code_t), prose=lines(prose), short=lines(short),
                   lists={k: items(v) for k, v in lists.items()}, hi=hi.split("|"))


lang("de", r"""
[Schreib|Schreibe] mir [ein {lang}-Skript|ein Programm in {lang}|eine Funktion in {lang}], [das|die] {task}.
Ich brauche ein Skript, das {task}.
[Wie behebe ich|Woher kommt] in {lang} den Fehler `{err}`?
Mein {lang}-Programm stürzt mit {err} ab. [Was muss ich ändern?|Hilfe!]
Excel: [Formel, die Duplikate zählt|wie summiere ich nur die bezahlten Zeilen|Spalte A am Komma trennen]
Wie mache ich in git [den letzten Commit rückgängig|einen Branch auf dem Server umbenennen]? [Bitte die Befehle.|]
SQL-Abfrage für [die zehn besten Kunden|alle Bestellungen ohne Lieferung|den Umsatz je Monat]
{snip}\n\n[Was macht dieser Code?|Finde den Fehler.|Bitte schneller machen.|Erklär mir das Zeile für Zeile.|Schreib das in {lang} um.|Warum geht das nicht?]
[Regulärer Ausdruck|Regex] für [eine deutsche Postleitzahl|eine IBAN|ein Datum wie 03.10.1990]
[Dockerfile|Makefile|nginx-Konfiguration|GitHub-Workflow] für {place}, bitte.
Auf meiner Webseite soll ein Knopf [den Text kopieren|das Menü öffnen], nur [HTML und JS|CSS].
Mit welchem Befehl [finde ich große Dateien unter Linux|benenne ich hundert Dateien um]?
Kannst du mir ein kleines Werkzeug bauen, das {task}?
""", r"""
[Erkläre|Erklär] mir [ausführlich|in einfachen Worten|mit Beispielen|] {subj}.
Schreibe [einen Brief|eine E-Mail|eine Beschwerde] an {whom} wegen [der Heizung|einer Rechnung|des Lärms|meiner Kündigung].
Erzähl mir [eine Geschichte über {thing}|die Geschichte der Hanse|ein Märchen von {thing}].
Was spricht für und gegen [ein Tempolimit|Homeoffice|Noten in der Schule|{subj}]?
Schreib einen Aufsatz über {subj}.
Warum [ist der Himmel blau|schnurren Katzen|träumen wir|ist das Meer salzig|fallen im Herbst die Blätter]?
Wie [lerne ich am besten eine Sprache|bereite ich mich auf ein Vorstellungsgespräch vor|pflege ich Orchideen|schlafe ich besser ein]?
Rezept für [Linsensuppe|Kartoffelsalat|Apfelstrudel], Schritt für Schritt
Plane [eine Woche|drei Tage] in [Wien|Rom|Island] für [Kinder|Rentner|zwei Personen].
Ich [habe zwei Jobangebote|fühle mich einsam|streite mit meiner Mitbewohnerin]. Was soll ich tun?
Fasse [Goethes Faust|den Dreißigjährigen Krieg|die Odyssee] zusammen.
[Vergleiche|Unterschied zwischen] [Kapitalismus und Sozialismus|Katzen und Hunde|{lang} und {lang}] in Worten, ohne Code.
Verfasse eine Rede zum [Geburtstag|Abschied|Jubiläum] von {person}.
Ein Gedicht über {thing}, bitte.
Formuliere diesen Text freundlicher: {parag}
Was ist der Sinn von {tech}? Erklär es meinem Chef.
""", r"""
[Wie heißt|Was ist] die Hauptstadt von {country}?
Wie viel ist {n} [mal|plus|minus|geteilt durch] {d}?
Was heißt „{word}“ auf [Englisch|Spanisch|Französisch]?
Ist {n} eine Primzahl? Ja oder nein.
[Wann|In welchem Jahr] [fiel die Mauer|begann der Erste Weltkrieg|wurde Mozart geboren]?
Wer [schrieb Faust|malte die Mona Lisa|erfand das Telefon|hat Amerika entdeckt]?
Wie viele [Tage hat ein Schaltjahr|Bundesländer gibt es|Gramm sind ein Kilo]?
Synonym für {word}
Plural von {word}
[Hallo|Guten Morgen|Moin|Servus|Danke|Danke schön|Tschüss|Alles klar|Wie geht's]
{subj}, [in einem Satz|in fünf Wörtern].
{snip}\n\nWelche Sprache ist das? [Ein Wort.|Nur der Name.]
[Der, die oder das|Artikel]: {word}?
Welcher Port gehört zu {svc}?
Wofür steht {acro}?
Stimmung dieser Bewertung, ein Wort: [Nie wieder!|Das Essen war kalt.|Einfach wunderbar.]
Liegt {country} am Meer? {limit}
Wie spät ist es in [Tokio|New York]?
Wie hoch ist [der Mount Everest|die Zugspitze]?
{n} Grad Celsius in Fahrenheit
Titel für einen Text über {thing}, höchstens vier Wörter
Korrigiere: [Ich habe gegangen nach Hause.|Wegen dem Regen bleibe ich.]
Nenne ein Tier mit {letter}.
""", hi="|||Hallo, |Hi, |Kurze Frage: |Bitte: |Guten Tag. |Moin, ", limit="Nur die Zahl.|Ein Wort genügt.|Ja oder nein?|Kurz bitte.|Nur der Name.|Ohne Erklärung.|Bitte in einem Satz.",
     long="Gern ausführlich.|Mindestens drei Absätze.|Bitte mit Beispielen.|Etwa 400 Wörter.",
     subj="die Photosynthese|den Dreißigjährigen Krieg|das Immunsystem|Inflation|den Klimawandel|die Entstehung der Alpen|das Grundgesetz|schwarze Löcher|die Hanse|Burnout|Kants Philosophie|die Börse|künstliche Intelligenz|den Föhn",
     task="doppelte Zeilen entfernt|Fotos nach Datum umbenennt|Wörter zählt|eine CSV-Datei in JSON umwandelt|jede Nacht ein Backup macht|zufällige Passwörter erzeugt|Primzahlen berechnet|eine Liste sortiert|Webseiten auf Änderungen prüft|Temperaturen ausliest",
     thing="ein alter Leuchtturmwärter|eine sprechende Teekanne|der letzte Zug|ein verlorener Handschuh|ein schüchterner Riese|eine graue Katze|ein Dorf ohne Uhren",
     country="Peru|Norwegen|Japan|Polen|Kenia|Ungarn|Island|Brasilien|Kanada|Griechenland", word="Fenster|Schmetterling|schnell|mutig|Löffel|Brot|traurig|Gabel|Zeitung|schön",
     whom="meine Vermieterin|den Bürgermeister|die Schule|meinen Chef|eine alte Freundin|die Versicherung", letter="A|B|K|Z|W",
     parag="Die Züge kommen hier selten pünktlich. Man steht im Regen und wartet, und niemand sagt etwas. Früher war das anders, sagen die Alten.|Im Garten meiner Tante wachsen Tomaten, Bohnen und ein schiefer Apfelbaum. Jeden Sommer streiten wir, wer ihn schneiden darf.")

lang("fr", r"""
[Écris|Fais-moi|Donne-moi] [une fonction {lang}|un script {lang}|un programme en {lang}] qui {task}.
Comment corriger `{err}` en {lang} ?
Un script [bash|PowerShell] pour renommer mes fichiers, s'il te plaît.
J'ai besoin d'un petit outil qui {task}. [Tu peux le coder ?|]
Formule Excel pour [compter les doublons|additionner les lignes payées|séparer nom et prénom]
Requête SQL pour [les dix meilleurs clients|les commandes sans livraison|le chiffre d'affaires par mois]
{snip}\n\n[Que fait ce code ?|Trouve le bug.|Explique ligne par ligne.|Réécris ça en {lang}.|Rends-le plus rapide.|Pourquoi ça plante ?]
Quelles commandes git pour [annuler le dernier commit|renommer une branche] ?
Une regex pour [un numéro de téléphone français|un code postal|une adresse e-mail]
Un [Dockerfile|Makefile|fichier nginx] pour {place}
Je veux [un bouton qui copie le texte|un menu déroulant|un compte à rebours] sur ma page, en [HTML/CSS|JavaScript pur].
Mon programme {lang} affiche {err}, aide-moi à réparer.
Écris les tests unitaires d'une fonction qui {task}.
""", r"""
Explique-moi {subj} [en détail|simplement|avec des exemples|].
Rédige une lettre [de motivation pour un poste de libraire|à {whom} au sujet du bruit|de résiliation à {whom}].
Pourquoi [les chats ronronnent-ils|le ciel est-il bleu|la mer est-elle salée|rêve-t-on] ? [Développe.|]
Raconte [une légende bretonne|une histoire avec {thing}|la vie de {person}].
Quels sont les avantages et les inconvénients [du télétravail|de la vie à la campagne|du nucléaire] ?
Écris [un poème|une nouvelle|un conte] sur {thing}.
Dissertation sur {subj}.
Comment [apprendre le piano à quarante ans|bien dormir|préparer un entretien|économiser de l'argent] ?
Recette [de la ratatouille|des crêpes|du gratin dauphinois], étape par étape
Propose un itinéraire de [trois jours|une semaine] à [Lyon|Lisbonne|Rome].
Résume [Les Misérables|la Révolution française|le mythe d'Œdipe] en une page.
[J'ai deux offres d'emploi|Je me sens seul|Je me dispute avec ma sœur]. Que faire ?
Écris un discours pour [un départ à la retraite|un mariage|les vingt ans du club].
Reformule ce texte dans un ton plus chaleureux : {parag}
Explique {tech} à mon patron, sans code.
Que penses-tu de {subj} ? Argumente.
""", r"""
Quelle est la capitale [de|du] {country} ?
Combien font {n} [plus|fois|moins|divisé par] {d} ?
Un synonyme de « {word} » ?
Traduis « {word} » en [anglais|espagnol|allemand].
[En quelle année|Quand] [a commencé la Première Guerre mondiale|est tombé le mur de Berlin|est né Mozart] ?
Qui [a écrit Les Misérables|a peint la Joconde|a inventé le téléphone] ?
Est-ce que {n} est premier ? [oui ou non|]
Combien de [jours dans une année bissextile|grammes dans un kilo|lettres dans « {word} »] ?
[Bonjour|Salut|Merci|Merci beaucoup|Coucou|Ça va ?|Bonne nuit|D'accord]
{subj}, en une phrase.
{snip}\n\nQuel langage ? Un seul mot.
Masculin ou féminin : {word} ?
Le pluriel de « {word} »
Quelle est la monnaie {country2} ?
Que signifie le sigle {acro} ?
Port par défaut de {svc} ?
Positif ou négatif, un mot : [Plus jamais !|Un accueil charmant.|Repas froid et cher.]
Un titre de cinq mots pour un récit sur {thing}
Corrige : [Je suis allé au le marché.|Les enfants mange.]
Convertis {n} km en miles.
Quelle heure est-il à [Tokyo|Montréal] ?
Le {country} a-t-il une côte ? {limit}
Contraire de {word} ?
""", hi="|||Bonjour, |Salut ! |Petite question : |Dis, |Coucou, ", limit="Un seul mot.|Juste le chiffre.|oui ou non|Réponse courte.|Seulement le nom.|Une phrase maximum.|Sans explication.", long="Prends ton temps.|En plusieurs paragraphes.|Environ 400 mots.|Avec des exemples.",
     subj="la photosynthèse|la Révolution française|le système immunitaire|l'inflation|le réchauffement climatique|les trous noirs|l'existentialisme|la laïcité|l'intelligence artificielle|le jazz|la bourse|la guerre froide",
     task="trie un tableau de dates|supprime les doublons|compte les mots d'un fichier|convertit un CSV en JSON|télécharge une page|génère des mots de passe|calcule les nombres premiers|sauvegarde un dossier chaque nuit|renomme les photos par date",
     thing="un vieux gardien de phare|une théière qui parle|le dernier train|un dragon timide|une porte bleue|un chat gris|un village sans horloge", country="Pérou|Norvège|Japon|Pologne|Kenya|Canada|Maroc|Portugal|Brésil|Liban", country2="du Japon|de la Suisse|du Brésil|de la Pologne",
     word="fenêtre|content|rapide|souris|pain|courageux|cheval|hiver|gentil|bibliothèque", whom="mon propriétaire|mon banquier|la mairie|une vieille amie|mon assurance|la directrice de l'école",
     parag="Les trains arrivent rarement à l'heure dans cette ville. On attend sous la pluie et personne ne dit rien. Avant, c'était différent, disent les anciens.|Dans le jardin de ma tante poussent des tomates et un pommier tordu. Chaque été nous nous disputons pour savoir qui le taillera.")

lang("es", r"""
[Hazme|Escribe|Necesito] [un programa en {lang}|un script de {lang}|una función en {lang}] que {task}.
¿Por qué me sale `{err}` en {lang}? [Corrige el código.|¿Cómo lo arreglo?]
Necesito una consulta SQL con [los diez clientes que más compran|los pedidos sin entrega|las ventas por mes].
Fórmula de Excel para [sumar solo las filas pagadas|contar duplicados|separar nombre y apellido]
{snip}\n\n[¿Qué hace este código?|Encuentra el error.|Explícalo línea por línea.|Pásalo a {lang}.|Hazlo más rápido.|¿Por qué falla?]
¿Qué comandos de git uso para [deshacer el último commit|cambiar el nombre de una rama]?
Una expresión regular para [un teléfono|un correo|una matrícula española]
[Dockerfile|Makefile|configuración de nginx] para {place}, por favor.
Quiero [un botón que copie el texto|un menú plegable|una cuenta atrás] en mi web, solo [HTML y CSS|JavaScript].
¿Cómo hago en {lang} para [leer un archivo línea por línea|ordenar por dos campos|hacer una petición HTTP]?
Automatízame esto: que {task}. No sé programar.
Escribe pruebas para una función que {task}.
""", r"""
Explícame {subj} [con calma|en detalle|con ejemplos|].
Escribe [un cuento|una historia|un poema] sobre {thing}.
¿Qué ventajas y desventajas tiene [vivir en el campo|el teletrabajo|la energía nuclear|{subj}]?
Cuéntame [cómo era la vida en Al-Ándalus|la vida de {person}|la historia de {subj}].
Redacta [una carta|un correo] [a {whom}|para {whom}] sobre [el ruido|una factura|mi renuncia|un retraso].
¿Por qué [ronronean los gatos|el cielo es azul|soñamos|el mar es salado]?
¿Cómo puedo [aprender a nadar de adulto|dormir mejor|prepararme para una entrevista|ahorrar dinero]?
Receta de [gazpacho|tortilla de patatas|arroz con leche], paso a paso
Planea [tres días|una semana] en [Sevilla|Lisboa|México] [con niños|con poco dinero].
Resume [El Quijote|la Guerra Civil|la Odisea] en una página.
[Tengo dos ofertas de trabajo|Me siento solo|Discuto con mi hermano]. ¿Qué hago?
Un discurso para [la boda de mi hermana|una jubilación|la fiesta de fin de curso].
Reescribe este texto con un tono más amable: {parag}
Ensayo sobre {subj}.
Explica {tech} a mi jefa, sin código.
¿Qué opinas de {subj}? Argumenta.
""", r"""
¿Cuál es la capital de {country}?
¿Cuánto es {n} [por|más|menos|entre] {d}?
[Di|Dame] un [sinónimo|antónimo] de {word}.
¿En qué año [llegó el hombre a la Luna|cayó el muro de Berlín|empezó la Primera Guerra Mundial]?
¿Quién [escribió El Quijote|pintó el Guernica|inventó el teléfono]?
¿Es primo el {n}? [sí o no|]
¿Cómo se dice «{word}» en [inglés|francés|japonés]?
¿Cuántos [días tiene un año bisiesto|gramos hay en un kilo|planetas hay|continentes hay]?
[Hola|Buenas|Buenos días|Gracias|Muchas gracias|¿Qué tal?|Vale|Adiós|¿Estás ahí?]
{subj} en una frase.
{snip}\n\n¿Qué lenguaje es? Una palabra.
Plural de «{word}»
¿Qué significa {acro}?
¿Qué puerto usa {svc}?
¿Tiene mar {country}? {limit}
¿Positivo o negativo? [Nunca más.|Un trato estupendo.|La sopa estaba fría.]
Título de cinco palabras para un relato sobre {thing}
Corrige: [Yo fue al mercado.|La problema es grande.]
{n} kilómetros en millas
¿Qué hora es en [Tokio|Lima]?
¿Moneda de {country}?
¿Qué número sigue: 2, 4, 8, 16?
¿Cuánto mide [el Everest|la torre Eiffel]?
""", hi="|||Hola, |Buenas, |Oye, |Una pregunta: |Por favor: ", limit="Una palabra.|Solo el número.|sí o no|Respuesta corta.|Solo el nombre.|Sin explicación.|En una frase.", long="Con detalle.|Varios párrafos.|Unas 400 palabras.|Con ejemplos.",
     subj="la fotosíntesis|la Revolución francesa|el sistema inmunitario|la inflación|el cambio climático|los agujeros negros|el existencialismo|la inteligencia artificial|el flamenco|la bolsa|la Guerra Fría|los incas",
     task="lea un archivo y cuente las palabras|quite líneas repetidas|ordene una lista|convierta CSV en JSON|descargue una página|genere contraseñas|calcule números primos|haga copias cada noche|renombre mis fotos por fecha",
     thing="un farero que pierde la luz|una tetera que habla|el último tren|un dragón nervioso|una puerta azul|un gato gris|un pueblo sin relojes", country="Perú|Noruega|Japón|Polonia|Kenia|Canadá|Marruecos|Portugal|Brasil|Bolivia",
     word="ventana|rápido|feliz|ratón|pan|valiente|caballo|invierno|biblioteca|luz", whom="mi casero|el banco|el alcalde|una vieja amiga|mi jefe|el colegio",
     parag="Los trenes casi nunca llegan a tiempo en esta ciudad. Uno espera bajo la lluvia y nadie dice nada. Antes era distinto, dicen los viejos.|En el jardín de mi tía crecen tomates y un manzano torcido. Cada verano discutimos sobre quién lo poda.")

lang("pt", r"""
[Escreva|Faça|Crie|Preciso de] [um programa em {lang}|um script {lang}|uma função em {lang}] que {task}.
Por que aparece `{err}` no {lang}? [Corrija o código.|Como resolvo?]
Consulta SQL com [os dez melhores clientes|os pedidos sem entrega|as vendas por mês]
Fórmula do Excel para [somar só as linhas pagas|contar repetidos|separar nome e sobrenome]
{snip}\n\n[O que faz este código?|Ache o erro.|Explique linha por linha.|Passe para {lang}.|Deixe mais rápido.]
Quais comandos do git para [desfazer o último commit|renomear um branch]?
Expressão regular para [um CEP|um CPF|um e-mail]
[Dockerfile|Makefile|configuração do nginx] para {place}
Quero [um botão que copia o texto|um menu suspenso|um cronômetro] no meu site, [HTML e CSS|JavaScript puro].
Como faço em {lang} para [ler um arquivo linha a linha|ordenar por dois campos|chamar uma API]?
""", r"""
Explique {subj} [com calma|em detalhes|com exemplos|].
Escreva [um conto|uma história|um poema] sobre {thing}.
Quais são as vantagens e desvantagens de [morar no campo|trabalhar em casa|energia nuclear]?
Conte [a história do Brasil colonial|a vida de {person}|como surgiu o samba].
Redija [uma carta|um e-mail] para {whom} sobre [o barulho|uma fatura|minha demissão].
Por que [os gatos ronronam|o céu é azul|sonhamos|o mar é salgado]?
Como posso [dormir melhor|aprender inglês sozinho|me preparar para uma entrevista|economizar]?
Receita de [feijoada|bacalhau|pão de queijo] passo a passo
Roteiro de [três dias|uma semana] em [Lisboa|Salvador|Porto]
Resuma [Dom Casmurro|a Revolução Francesa|Os Lusíadas] em uma página.
[Tenho duas propostas de emprego|Sinto-me sozinho|Brigo com meu irmão]. O que eu faço?
Discurso para [o casamento da minha irmã|uma formatura|uma aposentadoria]
Reescreva este texto de forma mais gentil: {parag}
Redação sobre {subj}.
Explique {tech} para o meu chefe, sem código.
""", r"""
Qual é a capital [de|do|da] {country}?
Quanto é {n} [vezes|mais|menos|dividido por] {d}?
Um [sinônimo|antônimo] de {word}?
Em que ano [o homem chegou à Lua|caiu o muro de Berlim|o Brasil ficou independente]?
Quem [escreveu Os Lusíadas|pintou a Mona Lisa|inventou o telefone]?
{n} é primo? [sim ou não|]
Como se diz "{word}" em [inglês|francês|alemão]?
Quantos [dias tem um ano bissexto|gramas tem um quilo|estados tem o Brasil]?
[Oi|Olá|Bom dia|Obrigado|Valeu|Tudo bem?|Tchau|Beleza]
{subj} em uma frase.
{snip}\n\nQue linguagem é esta? Uma palavra.
Plural de "{word}"
O que significa {acro}?
Porta padrão do {svc}?
{country} tem mar? {limit}
Positivo ou negativo? [Nunca mais.|Atendimento ótimo.|A sopa estava fria.]
Título de cinco palavras para um conto sobre {thing}
Corrija: [Eu foi ao mercado.|Nós vai amanhã.]
{n} km em milhas
Qual é a moeda [do|da] {country}?
""", hi="|||Oi, |Olá! |Por favor, |Pergunta rápida: |Bom dia. ", limit="Uma palavra.|Só o número.|sim ou não|Resposta curta.|Só o nome.|Sem explicação.", long="Com detalhes.|Vários parágrafos.|Umas 400 palavras.",
     subj="a fotossíntese|a Revolução Francesa|o sistema imunológico|a inflação|as mudanças climáticas|os buracos negros|a inteligência artificial|a bossa nova|a bolsa de valores|a Guerra Fria",
     task="conta as palavras de um arquivo|remove linhas repetidas|ordena uma lista|converte CSV em JSON|baixa uma página|gera senhas|calcula números primos|faz backup toda noite|renomeia minhas fotos",
     thing="um velho faroleiro|uma chaleira que fala|o último trem|um dragão tímido|uma porta azul|um gato cinzento", country="Peru|Noruega|Japão|Polônia|Quênia|Canadá|Marrocos|Angola|Chile|Moçambique", word="janela|rápido|feliz|rato|pão|corajoso|cavalo|inverno|luz|saudade",
     whom="meu senhorio|o banco|a prefeitura|uma velha amiga|meu chefe|a escola",
     parag="Os trens quase nunca chegam na hora nesta cidade. A gente espera na chuva e ninguém diz nada. Antigamente era diferente, dizem os mais velhos.|No quintal da minha tia crescem tomates e uma macieira torta. Todo verão brigamos para saber quem vai podar.")

lang("it", r"""
[Scrivimi|Scrivi|Mi serve] [una funzione in {lang}|un programma {lang}|uno script {lang}] che {task}.
[Correggi|Come risolvo] questo errore in {lang}: `{err}`
Query SQL per [i dieci clienti migliori|gli ordini senza consegna|le vendite per mese]
Formula Excel per [sommare solo le righe pagate|contare i doppioni|separare nome e cognome]
{snip}\n\n[Cosa fa questo codice?|Trova il bug.|Spiegalo riga per riga.|Riscrivilo in {lang}.|Rendilo più veloce.]
Comandi git per [annullare l'ultimo commit|rinominare un branch]
Espressione regolare per [un codice fiscale|una mail|un CAP]
[Dockerfile|Makefile|config nginx] per {place}
Vorrei [un pulsante che copia il testo|un menu a tendina|un conto alla rovescia] nella mia pagina, solo [HTML e CSS|JavaScript].
Come si fa in {lang} a [leggere un file riga per riga|ordinare per due campi]?
""", r"""
[Parlami di|Spiegami] {subj}[ con calma| nel dettaglio| con esempi|].
Consigli per [chi vuole imparare il pianoforte|dormire meglio|un colloquio di lavoro]?
Scrivi [un racconto|una favola|una poesia] su {thing}.
Quali sono i pro e i contro [del lavoro da casa|dell'energia nucleare|di vivere in campagna]?
Scrivi [una lettera|un'email] a {whom} per [il rumore|una fattura|le mie dimissioni].
Perché [i gatti fanno le fusa|il cielo è blu|sogniamo|il mare è salato]?
Ricetta [della carbonara|del tiramisù|delle lasagne], passo per passo
Itinerario di [tre giorni|una settimana] a [Napoli|Roma|Palermo]
Riassumi [I promessi sposi|la seconda guerra mondiale|l'Odissea] in una pagina.
[Ho due offerte di lavoro|Mi sento solo|Litigo con mio fratello]. Cosa faccio?
Discorso per [un matrimonio|la pensione di un collega|la laurea]
Riscrivi questo testo in tono più gentile: {parag}
Tema su {subj}.
Spiega {tech} al mio capo, senza codice.
Raccontami la vita di {person}.
""", r"""
Qual è la capitale [di|del|della] {country}?
Quanto fa {n} [diviso|per|più|meno] {d}?
Un [sinonimo|contrario] di {word}?
In che anno [è caduto il muro di Berlino|l'uomo è andato sulla Luna|è nata la Repubblica]?
Chi [ha scritto la Divina Commedia|ha dipinto la Gioconda|ha inventato la radio]?
{n} è primo? [sì o no|]
Come si dice "{word}" in [inglese|francese|tedesco]?
Quanti [giorni ha un anno bisestile|grammi ci sono in un chilo]?
[Ciao|Buongiorno|Grazie|Grazie mille|Come va?|Buonanotte|Va bene]
{subj} in una frase.
{snip}\n\nChe linguaggio è? Una parola.
Plurale di "{word}"
Cosa significa {acro}?
Che porta usa {svc}?
{country} ha il mare? {limit}
Positivo o negativo? [Mai più.|Servizio ottimo.|Zuppa fredda.]
Titolo di cinque parole per un racconto su {thing}
Correggi: [Io ha fame.|Se avrei tempo verrei.]
{n} km in miglia
""", hi="|||Ciao, |Scusa, |Una domanda: |Per favore, ", limit="Una parola.|Solo il numero.|sì o no|Risposta breve.|Solo il nome.|Senza spiegazioni.", long="Con calma.|In più paragrafi.|Circa 400 parole.",
     subj="il Rinascimento a Firenze|la fotosintesi|l'inflazione|il sistema immunitario|i buchi neri|il cambiamento climatico|l'intelligenza artificiale|l'opera|la guerra fredda|i vulcani",
     task="conta le parole di un file|toglie le righe doppie|ordina una lista|converte CSV in JSON|scarica una pagina|genera password|calcola i numeri primi|fa un backup ogni notte|rinomina le foto",
     thing="un vecchio guardiano del faro|una teiera parlante|l'ultimo treno|un drago timido|una porta blu|un gatto grigio", country="Perù|Norvegia|Giappone|Polonia|Kenya|Canada|Marocco|Portogallo|Brasile|Cile", word="finestra|veloce|felice|topo|pane|coraggioso|cavallo|inverno|luce|amicizia",
     whom="il mio padrone di casa|la banca|il sindaco|una vecchia amica|il mio capo|la scuola",
     parag="I treni non arrivano quasi mai in orario in questa città. Si aspetta sotto la pioggia e nessuno dice niente. Una volta era diverso, dicono i vecchi.|Nel giardino di mia zia crescono pomodori e un melo storto. Ogni estate litighiamo su chi debba potarlo.")

lang("nl", r"""
[Schrijf|Maak] [een {lang}-script|een programma in {lang}|een functie in {lang}] [dat|die] {task}.
Hoe los ik `{err}` op in {lang}?
SQL-query voor [de tien beste klanten|bestellingen zonder levering]
Excel-formule om [alleen betaalde rijen op te tellen|dubbele namen te tellen]
{snip}\n\n[Wat doet deze code?|Zoek de fout.|Leg het regel voor regel uit.|Herschrijf in {lang}.|Maak het sneller.]
Welke git-commando's om [de laatste commit ongedaan te maken|een branch te hernoemen]?
Regex voor [een postcode|een kenteken|een e-mailadres]
[Dockerfile|Makefile|nginx-config] voor {place}
Ik wil [een knop die tekst kopieert|een uitklapmenu] op mijn site, alleen [HTML en CSS|JavaScript].
""", r"""
Leg {subj} uit[, uitgebreid| in gewone taal|].
Schrijf [een brief|een mail] aan {whom} over [het lawaai|een rekening|mijn ontslag].
Schrijf een [verhaal|gedicht|sprookje] over {thing}.
Wat zijn de voor- en nadelen van [thuiswerken|kernenergie|wonen op het platteland]?
Waarom [spinnen katten|is de lucht blauw|dromen we]?
Hoe [slaap ik beter|leer ik een taal|bereid ik me voor op een sollicitatie]?
Recept voor [erwtensoep|appeltaart|stamppot], stap voor stap
Plan [drie dagen|een week] in [Gent|Rome|IJsland].
Vat [de Tachtigjarige Oorlog|de Odyssee] samen op één pagina.
[Ik heb twee banen aangeboden gekregen|Ik voel me eenzaam|Ik maak ruzie met mijn buurman]. Wat moet ik doen?
Toespraak voor [een bruiloft|een afscheid|een jubileum]
Herschrijf deze tekst vriendelijker: {parag}
Leg {tech} uit aan mijn baas, zonder code.
Vertel over het leven van {person}.
""", r"""
Wat is de hoofdstad van {country}?
Hoeveel is {n} [keer|plus|min|gedeeld door] {d}?
Synoniem van {word}?
In welk jaar [viel de muur|begon de Eerste Wereldoorlog]?
Wie [schilderde de Nachtwacht|vond de telefoon uit|schreef Max Havelaar]?
Is {n} een priemgetal? [ja of nee|]
Hoe zeg je "{word}" in het [Engels|Frans|Duits]?
Hoeveel [dagen heeft een schrikkeljaar|gram is een kilo|provincies heeft Nederland]?
[Hoi|Hallo|Goedemorgen|Dank je|Bedankt|Doei|Hoe gaat het?|Oké]
{subj} in één zin.
{snip}\n\nWelke taal is dit? Eén woord.
De of het: {word}?
Waar staat {acro} voor?
Standaardpoort van {svc}?
Ligt {country} aan zee? {limit}
Positief of negatief? [Nooit meer.|Geweldige service.]
Titel van vijf woorden voor een verhaal over {thing}
{n} km in mijlen
""", hi="|||Hoi, |Hallo, |Korte vraag: |Alsjeblieft, ", limit="Eén woord.|Alleen het getal.|ja of nee|Kort graag.|Alleen de naam.", long="Uitgebreid graag.|Ongeveer 400 woorden.",
     subj="fotosynthese|de Gouden Eeuw|inflatie|het immuunsysteem|zwarte gaten|klimaatverandering|kunstmatige intelligentie|de Koude Oorlog|de Deltawerken",
     task="woorden telt|dubbele regels verwijdert|een lijst sorteert|CSV naar JSON omzet|wachtwoorden maakt|priemgetallen berekent|elke nacht een back-up maakt|foto's hernoemt", thing="een oude vuurtorenwachter|een pratende theepot|de laatste trein|een verlegen draak|een grijze kat",
     country="Peru|Noorwegen|Japan|Polen|Kenia|Canada|Marokko|Suriname", word="raam|snel|moedig|muis|brood|paard|winter|licht|huis", whom="mijn huisbaas|de bank|de burgemeester|een oude vriendin|mijn baas|de school",
     parag="De treinen rijden hier zelden op tijd. Je staat in de regen te wachten en niemand zegt iets. Vroeger was dat anders, zeggen de ouderen.")

lang("pl", r"""
Napisz [skrypt w {lang}|program w {lang}|funkcję w {lang}], [który|która] {task}.
Jak naprawić `{err}` w {lang}?
Zapytanie SQL: [dziesięciu najlepszych klientów|zamówienia bez dostawy|sprzedaż według miesięcy]
Formuła w Excelu, która [sumuje tylko opłacone wiersze|liczy duplikaty]
{snip}\n\n[Co robi ten kod?|Znajdź błąd.|Wyjaśnij linia po linii.|Przepisz na {lang}.|Przyspiesz to.]
Jakie polecenia git, żeby [cofnąć ostatni commit|zmienić nazwę gałęzi]?
Wyrażenie regularne na [kod pocztowy|PESEL|adres e-mail]
[Dockerfile|Makefile|konfiguracja nginx] dla {place}
Chcę [przycisk kopiujący tekst|rozwijane menu] na stronie, tylko [HTML i CSS|JavaScript].
""", r"""
[Wyjaśnij|Wytłumacz mi] {subj}[ dokładnie| na przykładach|].
Napisz [list|maila|skargę] do {whom} w sprawie [hałasu|faktury|wypowiedzenia].
Napisz [opowiadanie|wiersz|bajkę] o {thing}.
Jakie są wady i zalety [pracy zdalnej|energii jądrowej|życia na wsi]?
Dlaczego [koty mruczą|niebo jest niebieskie|śnimy|morze jest słone]?
Jak [lepiej spać|nauczyć się języka|przygotować się do rozmowy o pracę|oszczędzać]?
Przepis na [bigos|pierogi|żurek], krok po kroku
Zaplanuj [trzy dni|tydzień] w [Krakowie|Rzymie|Lizbonie].
Streść [Pana Tadeusza|Lalkę|powstanie warszawskie] na jedną stronę.
[Mam dwie oferty pracy|Czuję się samotny|Kłócę się z bratem]. Co robić?
Przemówienie na [ślub siostry|pożegnanie kolegi|jubileusz]
Przeredaguj ten tekst uprzejmiej: {parag}
Wyjaśnij szefowi, czym jest {tech}, bez kodu.
Opowiedz o życiu {person}.
Rozprawka na temat: {subj}.
""", r"""
Jaka jest stolica [kraju|państwa] {country}?
Ile to jest {n} [razy|plus|minus|podzielić przez] {d}?
Synonim słowa {word}?
W którym roku [upadł mur berliński|była bitwa pod Grunwaldem]?
Kto [napisał Pana Tadeusza|namalował Mona Lisę|odkrył rad]?
Czy {n} to liczba pierwsza? [tak czy nie|]
Jak jest "{word}" po [angielsku|niemiecku|francusku]?
Ile [dni ma rok przestępny|gramów ma kilogram|województw ma Polska]?
[Cześć|Hej|Dzień dobry|Dzięki|Dziękuję|Dobranoc|Co słychać?|Okej]
{subj} w jednym zdaniu.
{snip}\n\nJaki to język? Jedno słowo.
Liczba mnoga od {word}
Co oznacza skrót {acro}?
Domyślny port {svc}?
Czy {country} leży nad morzem? {limit}
Pozytywna czy negatywna? [Nigdy więcej.|Świetna obsługa.]
Tytuł w pięciu słowach dla opowiadania o {thing}
{n} km na mile
Popraw: [Ja poszłem do sklepu.|Dwa kobiety idą.]
""", hi="|||Cześć, |Hej, |Szybkie pytanie: |Proszę, ", limit="Jedno słowo.|Tylko liczba.|tak czy nie|Krótko.|Tylko nazwa.|Bez wyjaśnień.", long="Szczegółowo.|Około 400 słów.",
     subj="fotosynteza|inflacja|układ odpornościowy|czarne dziury|zmiany klimatu|sztuczna inteligencja|zimna wojna|romantyzm w Polsce|powstanie styczniowe", task="liczy słowa w pliku|usuwa powtórzone linie|sortuje listę|zamienia CSV na JSON|generuje hasła|oblicza liczby pierwsze|robi kopię zapasową co noc",
     thing="starym latarniku|gadającym czajniku|ostatnim pociągu|nieśmiałym smoku|szarym kocie", country="Peru|Norwegia|Japonia|Kenia|Kanada|Maroko|Chorwacja|Litwa", word="okno|szybki|odważny|mysz|chleb|koń|zima|światło|dom", whom="właściciela mieszkania|banku|burmistrza|starej przyjaciółki|szefa|szkoły",
     parag="Pociągi rzadko przyjeżdżają tu na czas. Człowiek stoi w deszczu i czeka, a nikt nic nie mówi. Kiedyś było inaczej, mówią starsi.")

lang("ru", r"""
[Напиши|Сделай] [на {lang} функцию|скрипт на {lang}|программу на {lang}], [которая|который] {task}.
Как исправить `{err}` в {lang}?
SQL-запрос: [десять лучших клиентов|заказы без доставки|продажи по месяцам]
Формула в Excel, чтобы [сложить только оплаченные строки|посчитать дубликаты]
{snip}\n\n[Что делает этот код?|Найди ошибку.|Объясни построчно.|Перепиши на {lang}.|Сделай быстрее.|Почему не работает?]
Какими командами git [отменить последний коммит|переименовать ветку]?
Регулярное выражение для [номера телефона|почтового индекса|даты]
[Dockerfile|Makefile|конфиг nginx] для {place}
Хочу на сайт [кнопку, которая копирует текст|выпадающее меню|таймер], только [HTML и CSS|JavaScript].
Программа на {lang} падает с {err}, помоги починить.
Напиши телеграм-бота, который {task}.
""", r"""
[Расскажи подробно о том, что такое|Объясни, как устроен|Объясни] {subj}.
Напиши [письмо|жалобу] {whom} о [шуме|счёте|моём увольнении].
Напиши [рассказ|сказку|стихотворение] про {thing}.
Какие плюсы и минусы у [удалённой работы|атомной энергетики|жизни в деревне]?
Почему [кошки мурлычут|небо голубое|мы видим сны|море солёное]?
Как [лучше спать|выучить язык|подготовиться к собеседованию|накопить денег]?
Рецепт [борща|пельменей|шарлотки] по шагам
Составь план поездки на [три дня|неделю] в [Казань|Рим|Стамбул].
Кратко перескажи на страницу [«Войну и мир»|«Преступление и наказание»|историю Крымской войны].
[У меня два предложения о работе|Мне одиноко|Я ссорюсь с братом]. Что делать?
Речь на [свадьбу сестры|юбилей|выпускной]
Перепиши этот текст дружелюбнее: {parag}
Объясни начальнику, что такое {tech}, без кода.
Расскажи о жизни {person}.
Сочинение на тему «{subj}».
""", r"""
[Какая столица|Столица] у страны {country}?
Сколько будет {n} [умножить на|плюс|минус|разделить на] {d}?
Синоним к слову {word}?
В каком году [упала Берлинская стена|полетел Гагарин|родился Пушкин]?
Кто [написал «Войну и мир»|нарисовал Мону Лизу|изобрёл радио]?
{n} — простое число? [да или нет|]
Как сказать «{word}» по-[английски|немецки|французски]?
Сколько [дней в високосном году|граммов в килограмме|планет в системе]?
[Привет|Здравствуйте|Спасибо|Доброе утро|Пока|Как дела?|Ок|Ты тут?]
{subj} одним предложением.
{snip}\n\nКакой это язык? Одно слово.
Антоним слова {word}
Что значит {acro}?
Порт по умолчанию у {svc}?
Есть ли у страны {country} море? {limit}
Положительный или отрицательный отзыв? [Никогда больше.|Отличный сервис.]
Название из пяти слов для рассказа про {thing}
{n} км в милях
Исправь: [Я пошол в магазин.|Мы едим в поезде домой.]
Какой год был сто лет до {n2} года?
""", hi="|||Привет, |Здравствуйте! |Быстрый вопрос: |Пожалуйста, ", limit="Одно слово.|Только число.|да или нет|Коротко.|Только название.|Без объяснений.", long="Подробно.|Примерно 400 слов.",
     subj="фотосинтез|инфляция|иммунитет|чёрные дыры|изменение климата|искусственный интеллект|холодная война|двигатель внутреннего сгорания|блокада Ленинграда|биржа", task="считает слова в файле|удаляет повторы строк|сортирует список|переводит CSV в JSON|генерирует пароли|ищет простые числа|делает бэкап каждую ночь|следит за ценой товара",
     thing="старого смотрителя маяка|говорящий чайник|последний поезд|робкого дракона|серого кота", country="Перу|Норвегия|Япония|Польша|Кения|Канада|Марокко|Чили", word="окно|быстрый|храбрый|мышь|хлеб|лошадь|зима|свет|дом", whom="хозяину квартиры|в банк|мэру|старой подруге|начальнику|в школу",
     parag="Поезда здесь редко приходят вовремя. Стоишь под дождём и ждёшь, и никто ничего не говорит. Раньше было иначе, говорят старики.")

lang("uk", r"""
Напиши [скрипт на {lang}|програму на {lang}], [який|яка] {task}.
Як виправити `{err}` у {lang}?
{snip}\n\n[Що робить цей код?|Знайди помилку.|Перепиши на {lang}.]
SQL-запит: [десять найкращих клієнтів|замовлення без доставки]
[Dockerfile|конфіг nginx] для {place}
""", r"""
[Розкажи докладно про|Поясни] {subj}.
Напиши [листа|скаргу] до {whom}.
Напиши [оповідання|казку|вірш] про {thing}.
Чому [коти муркочуть|небо синє|море солоне]?
Як [краще спати|вивчити мову|заощаджувати]?
Рецепт [борщу|вареників] покроково
[Мені самотньо|Маю дві пропозиції роботи]. Що робити?
""", r"""
Яка столиця країни {country}?
Скільки буде {n} [помножити на|плюс|мінус] {d}?
Синонім до слова {word}?
Хто [написав «Кобзар»|винайшов телефон]?
{n} — просте число? [так чи ні|]
[Привіт|Дякую|Добрий день|Як справи?|Бувай]
{subj} одним реченням.
Як буде «{word}» англійською?
У якому році [впав Берлінський мур|почалася Перша світова]?
""", subj="фотосинтез|інфляцію|імунітет|чорні діри|зміну клімату|козаків", task="рахує слова у файлі|видаляє повтори|сортує список|генерує паролі", thing="старого доглядача маяка|балакучий чайник|останній потяг",
     country="Перу|Норвегія|Японія|Польща|Канада", word="вікно|швидкий|хліб|зима|світло", whom="власника квартири|банку|школи", limit="Одним словом.|так чи ні", long="Докладно.")

lang("tr", r"""
{lang} ile {task} [bir program|bir betik|bir fonksiyon] [yaz|yazar mısın|lazım].
{lang}'da `{err}` hatasını nasıl düzeltirim?
SQL sorgusu: [en iyi on müşteri|teslim edilmemiş siparişler|aylık satışlar]
Excel'de [sadece ödenen satırları toplayan|tekrarları sayan] formül
{snip}\n\n[Bu kod ne yapıyor?|Hatayı bul.|Satır satır açıkla.|{lang} diline çevir.|Daha hızlı yap.]
[Son commit'i geri almak|Bir dalın adını değiştirmek] için git komutları
{place} için [Dockerfile|nginx ayarı|Makefile]
Sitem için [metni kopyalayan düğme|açılır menü], sadece [HTML ve CSS|JavaScript]
""", r"""
[Bana {subj} konusunu|{subj} konusunu] [ayrıntılı|örneklerle|basitçe] anlat.
{thing} hakkında bir [hikâye|şiir|masal] yaz.
{whom} [gürültü|fatura|istifam] hakkında bir [mektup|e-posta] yaz.
[Evden çalışmanın|Nükleer enerjinin|Köyde yaşamanın] artıları ve eksileri neler?
Neden [kediler mırlar|gökyüzü mavidir|rüya görürüz]?
Nasıl [daha iyi uyurum|dil öğrenirim|iş görüşmesine hazırlanırım]?
Adım adım [mercimek çorbası|baklava|menemen] tarifi
[Kapadokya|Roma|İzmir] için [üç günlük|bir haftalık] gezi planı
[İki iş teklifi aldım|Kendimi yalnız hissediyorum]. Ne yapmalıyım?
{person} kimdi, hayatını anlat.
Bu metni daha nazik yaz: {parag}
{subj} üzerine bir deneme
{tech} nedir, patronuma kod olmadan açıkla.
""", r"""
{country} başkenti neresi?
{n} [çarpı|artı|eksi|bölü] {d} kaç eder?
"{word}" kelimesinin eş anlamlısı?
[Berlin Duvarı|İstanbul] hangi yıl [yıkıldı|fethedildi]?
[Telefonu kim icat etti|Mona Lisa'yı kim yaptı|Nutuk'u kim yazdı]?
{n} asal mı? [evet ya da hayır|]
"{word}" [İngilizce|Almanca|Fransızca] ne demek?
Bir [yılda kaç gün|kiloda kaç gram] var?
[Merhaba|Selam|Günaydın|Teşekkürler|Sağ ol|Nasılsın?|Tamam]
{subj}, tek cümleyle.
{snip}\n\nHangi dil bu? Tek kelime.
{acro} ne demek?
{svc} hangi portu kullanır?
{country} denize kıyısı var mı? {limit}
Olumlu mu olumsuz mu? [Bir daha asla.|Harika hizmet.]
{n} km kaç mil?
{thing} için beş kelimelik başlık
""", hi="|||Merhaba, |Selam, |Lütfen, |Kısa bir soru: ", limit="Tek kelime.|Sadece sayı.|evet ya da hayır|Kısa lütfen.|Sadece isim.", long="Ayrıntılı olsun.|Birkaç paragraf.",
     subj="fotosentez|enflasyon|bağışıklık sistemi|kara delikler|iklim değişikliği|yapay zekâ|Soğuk Savaş|Osmanlı tarihi", task="dosyadaki kelimeleri sayan|tekrarlanan satırları silen|listeyi sıralayan|CSV'yi JSON'a çeviren|rastgele şifre üreten|asal sayı bulan",
     thing="yaşlı bir fener bekçisi|konuşan bir çaydanlık|son tren|utangaç bir ejderha|gri bir kedi", country="Peru|Norveç|Japonya|Polonya|Kenya|Kanada|Fas", word="pencere|hızlı|cesur|fare|ekmek|at|kış|ışık|ev", whom="ev sahibime|bankaya|belediye başkanına|eski bir arkadaşıma|patronuma",
     parag="Trenler burada nadiren zamanında gelir. Yağmurda bekleriz ve kimse bir şey söylemez. Eskiden farklıydı, der yaşlılar.")

lang("zh", r"""
用{lang}写一个[函数|脚本|程序|类],[能|可以|用来]{task}。
{lang}报错`{err}`,[怎么改?|怎么解决|帮我修一下]
写一条SQL,查[销售额最高的十个客户|没有发货的订单|每个月的总收入|第二高的工资]
Excel公式:[只对已付款的行求和|统计重复的名字|把姓和名拆开|计算两个日期之间的工作日]
{snip}\n\n[这段代码是做什么的?|找出bug。|逐行解释。|改写成{lang}。|怎么优化?|为什么不行?]
git怎么[撤销上一次提交|重命名分支|合并几个提交]?[给出命令|]
匹配[手机号码|身份证号|邮箱地址]的正则表达式
给{place}写一个[Dockerfile|nginx配置|Makefile]
我想在网页上加一个[复制按钮|倒计时|下拉菜单],只用[HTML和CSS|原生JS]。
帮我做个小工具,{task}。
Linux下怎么[查找大文件|批量重命名文件]?给命令
给这个函数写单元测试:{snip}
实现[快速排序|LRU缓存|二叉树遍历],用{lang}
""", r"""
[请|]详细[介绍一下|讲讲]{subj}。
写一篇关于{subj}的[作文|文章|散文]。
给{whom}写一封[信|邮件],谈谈[噪音问题|账单|我的辞职]。
写一个关于{thing}的[故事|童话|诗]。
[在家工作|核能|住在乡下]有哪些优缺点?
为什么[猫会打呼噜|天空是蓝色的|人会做梦|海水是咸的]?
怎样[才能睡得更好|学好一门外语|准备面试|存钱]?
[红烧肉|饺子|麻婆豆腐]怎么做?请写出步骤
帮我计划[三天|一周]的[北京|京都|云南]旅行
概括一下[《红楼梦》|鸦片战争|《西游记》]的主要内容
[我有两份工作邀请|我感到很孤独|我和室友吵架了],该怎么办?
为[婚礼|毕业典礼|退休同事]写一篇发言稿
把这段话改得更友好:{parag}
给我的老板解释什么是{tech},不要代码
讲讲{person}的一生
谈谈你对{subj}的看法
把下面这段话翻译成英文:{parag}{parag}
写一份[产品介绍|工作总结|活动策划]
""", r"""
{country}的首都是哪里?
{n}[加|减|乘以|除以]{d}等于多少?
“{word}”的[近义词|反义词]是什么?
“{word}”用[英语|日语|法语]怎么说?
[柏林墙倒塌|新中国成立|第一次世界大战爆发]是哪一年?
[《红楼梦》的作者|电话的发明者|蒙娜丽莎的画家]是谁?
{n}是质数吗?[是或否|]
[一年有多少天|一公斤是多少克|太阳系有几颗行星]?
[你好|早上好|谢谢|再见|在吗|好的|晚安|你是谁]
用一句话说明{subj}
{snip}\n\n这是什么语言?只回答一个词
{acro}是什么的缩写?
{svc}默认端口是多少?
{country}靠海吗?{limit}
好评还是差评?[再也不来了。|服务很好。]
给关于{thing}的文章起个标题,不超过八个字
{n}公里是多少英里?
改错别字:[我门去公园。|他在学校的的时候。]
现在东京几点?
水的沸点是多少度
一句话总结:{parag}
""", hi="|||你好,|请问,|请|麻烦", limit="只回答一个词。|只要数字。|是或否|简短回答|一句话就行", long="请详细一些。|大约四百字。|分几段写。",
     subj="丝绸之路的历史|光合作用|通货膨胀|免疫系统|黑洞|气候变化|人工智能|冷战|秋天|端午节|儒家思想|区块链的意义", task="去重并排序|统计文件里的单词|把CSV转换成JSON|生成随机密码|计算质数|每天晚上备份文件夹|批量重命名照片|抓取网页标题|判断回文",
     thing="年老的灯塔看守人|会说话的茶壶|末班火车|害羞的龙|一只灰猫|没有钟的村庄", country="秘鲁|挪威|日本|波兰|肯尼亚|加拿大|摩洛哥|泰国", word="窗户|快|勇敢|老鼠|面包|冬天|光明|高兴", whom="房东|银行|市长|老朋友|老板|学校",
     parag="这里的火车很少准点。大家站在雨里等,谁也不说话。老人们说,从前不是这样的。|姑妈的院子里种着西红柿和一棵歪脖子苹果树。每年夏天我们都为谁来剪枝争论。")

lang("ja", r"""
{lang}で{task}[コード|関数|スクリプト|プログラム]を書いて[ください|]。
{lang}で`{err}`が出ます。[直してください。|どう直せばいいですか。]
SQLで[売上上位十人の顧客|未配送の注文|月ごとの売上]を出したい。
Excelで[支払い済みの行だけ合計する|重複を数える|姓と名を分ける]数式を教えて
{snip}\n\n[このコードは何をしますか?|バグを見つけて。|一行ずつ説明して。|{lang}に書き換えて。|速くして。]
gitで[直前のコミットを取り消す|ブランチ名を変える]コマンドは?
[郵便番号|メールアドレス|電話番号]の正規表現
{place}用の[Dockerfile|nginxの設定|Makefile]を書いて
サイトに[コピーボタン|カウントダウン|ドロップダウンメニュー]を付けたい。[HTMLとCSSだけで|素のJavaScriptで]
{task}ツールを作って。プログラミングはわかりません。
""", r"""
{subj}について[詳しく|わかりやすく|]説明してください。
{subj}についての[作文|エッセイ|レポート]を書いて。
{whom}に[騒音|請求書|退職]についての[手紙|メール]を書いてください。
{thing}の[物語|童話|詩]を書いて。
[在宅勤務|原子力|田舎暮らし]の長所と短所を教えてください。
なぜ[猫は喉を鳴らす|空は青い|人は夢を見る|海は塩辛い]のですか?
[よく眠る|語学を学ぶ|面接の準備をする|貯金する]にはどうすればいいですか?
[肉じゃが|カレー|お好み焼き]の作り方を手順で
[京都|ローマ|北海道]を[三日間|一週間]旅行する計画を文章で書いてください。
[源氏物語|明治維新|羅生門]のあらすじをまとめて
[内定が二つあって迷っています|最近さみしいです|同僚とうまくいきません]。どうしたらいいでしょう。
[結婚式|送別会|卒業式]のスピーチを書いて
この文章をもっと丁寧にして:{parag}
上司に{tech}とは何か、コードなしで説明したい
{person}の生涯について教えて
次の文章を英語に訳してください:{parag}{parag}
""", r"""
{country}の首都は[どこですか|]?
{n}[×|+|-|÷]{d}は[いくつ|]?
「{word}」の[類義語|反対語]は?
「{word}」は[英語|フランス語|中国語]で何?
[ベルリンの壁が崩れた|第一次世界大戦が始まった|東京オリンピックがあった]のは何年?
[源氏物語を書いた|モナリザを描いた|電話を発明した]のは誰?
{n}は素数ですか?[はいかいいえで|]
[一年は何日|一キロは何グラム|都道府県はいくつ]?
[こんにちは|おはよう|ありがとう|おやすみ|元気?|了解|誰ですか]
{subj}を一文で。
{snip}\n\nこれは何語?一語で。
{acro}は何の略?
{svc}の標準ポートは?
{country}に海はありますか。{limit}
肯定的?否定的?一語で:[二度と行きません。|最高でした。]
{thing}の話の題名を一つ
{n}キロは何マイル?
「{word}」の読み方は?
""", hi="|||こんにちは。|すみません、|質問です。", limit="一語で。|数字だけ。|はいかいいえで。|短く。|名前だけ。", long="詳しくお願いします。|四百字くらいで。",
     subj="光合成|明治維新|インフレ|免疫|ブラックホール|気候変動|人工知能|冷戦|茶道|火山", task="CSVファイルを読み込む|重複を取り除く|単語を数える|リストを並べ替える|パスワードを作る|素数を求める|毎晩バックアップする|写真の名前を変える",
     thing="年老いた灯台守|しゃべる急須|最終列車|内気な竜|灰色の猫", country="ペルー|ノルウェー|ポーランド|ケニア|カナダ|モロッコ|タイ", word="窓|速い|勇気|ねずみ|パン|冬|光|嬉しい", whom="大家さん|銀行|市長|古い友人|上司|学校",
     parag="この町では電車がめったに時間どおりに来ない。雨の中で待っていても、誰も何も言わない。昔は違ったと老人たちは言う。")

lang("ko", r"""
{lang}로 {task} [코드|함수|스크립트|프로그램]를 작성해 [줘|주세요].
{lang}에서 `{err}` 오류가 납니다. [고쳐 주세요.|어떻게 해결하나요?]
SQL로 [매출 상위 열 명의 고객|배송되지 않은 주문|월별 매출]을 조회하고 싶어요.
엑셀에서 [결제된 행만 더하는|중복을 세는|성과 이름을 나누는] 수식
{snip}\n\n[이 코드는 무엇을 하나요?|버그를 찾아줘.|한 줄씩 설명해줘.|{lang}로 바꿔줘.|더 빠르게 해줘.]
git에서 [마지막 커밋을 취소하는|브랜치 이름을 바꾸는] 명령어는?
[전화번호|이메일|우편번호] 정규식
{place}용 [Dockerfile|nginx 설정] 만들어 줘
웹페이지에 [복사 버튼|카운트다운|드롭다운 메뉴]을 넣고 싶어. [HTML과 CSS로만|순수 JS로]
""", r"""
{subj}에 대해 [자세히|쉽게|] 설명해 주세요.
{subj}에 대한 [글|에세이|보고서]을 써 줘.
{whom} [소음|청구서|퇴사]에 관한 [편지|이메일]를 써 주세요.
{thing}에 관한 [이야기|동화|시]를 써 줘.
[재택근무|원자력|시골 생활]의 장단점은 무엇인가요?
왜 [고양이는 가르랑거리나요|하늘은 파란가요|우리는 꿈을 꾸나요]?
어떻게 하면 [잠을 잘 잘|외국어를 배울|면접을 준비할] 수 있을까요?
[김치찌개|불고기|잡채] 만드는 법을 단계별로
[제주도|교토|로마] [3일|일주일] 여행 계획을 짜 줘
[춘향전|한국전쟁|홍길동전]의 내용을 정리해 줘
[취업 제안이 두 개라 고민이에요|요즘 외로워요]. 어떻게 할까요?
[결혼식|졸업식|송별회] 연설문을 써 줘
이 글을 더 친절하게 바꿔 줘: {parag}
상사에게 {tech} 개념을 코드 없이 설명해 줘
{person}의 생애를 들려줘
""", r"""
{country}의 수도는 어디인가요?
{n} [더하기|빼기|곱하기|나누기] {d}는?
"{word}"의 [비슷한말|반대말]은?
"{word}"를 [영어|일본어|프랑스어]로?
[베를린 장벽이 무너진|1차 세계대전이 시작된|한글이 만들어진] 해는?
[춘향전의 주인공|전화 발명가|모나리자의 화가]은 누구?
{n}은 소수인가요? [예/아니오|]
[1년은 며칠|1킬로는 몇 그램]?
[안녕|안녕하세요|고마워|감사합니다|잘 자|뭐 해?|응]
{subj}, 한 문장으로.
{snip}\n\n무슨 언어야? 한 단어로.
{acro}는 무엇의 약자?
{svc} 기본 포트는?
{country}는 바다가 있나요? {limit}
긍정 또는 부정? [다시는 안 가요.|최고였어요.]
{thing} 이야기 제목 하나만
{n}킬로미터는 몇 마일?
""", hi="|||안녕하세요, |질문: |저기, ", limit="한 단어로.|숫자만.|예/아니오로.|짧게.|이름만.", long="자세하게 부탁해요.|400자 정도로.",
     subj="광합성|인플레이션|면역 체계|블랙홀|기후 변화|인공지능|냉전|조선 시대|화산", task="파일의 단어를 세는|중복 줄을 지우는|리스트를 정렬하는|CSV를 JSON으로 바꾸는|비밀번호를 만드는|소수를 구하는|매일 밤 백업하는",
     thing="늙은 등대지기|말하는 찻주전자|마지막 기차|수줍은 용|회색 고양이", country="페루|노르웨이|일본|폴란드|케냐|캐나다|모로코", word="창문|빠르다|용감하다|쥐|빵|겨울|빛|기쁘다", whom="집주인에게|은행에|시장님께|옛 친구에게|상사에게",
     parag="이 도시의 기차는 좀처럼 제시간에 오지 않는다. 비를 맞으며 기다려도 아무도 말이 없다. 예전에는 달랐다고 노인들은 말한다.")

lang("ar", r"""
اكتب [برنامجًا بلغة {lang}|دالة بلغة {lang}|سكربت {lang}] {task}.
كيف أصلح الخطأ `{err}` في {lang}؟
استعلام SQL يعرض [أفضل عشرة عملاء|الطلبات غير المسلمة|المبيعات حسب الشهر]
معادلة إكسل [تجمع الصفوف المدفوعة فقط|تعد التكرارات]
{snip}\n\n[ماذا يفعل هذا الكود؟|جد الخطأ.|اشرحه سطرًا سطرًا.|حوله إلى {lang}.|اجعله أسرع.]
ما أوامر git [للتراجع عن آخر commit|لتغيير اسم فرع]؟
أريد [زرًا ينسخ النص|قائمة منسدلة] في صفحتي [بلغة HTML وCSS|بجافاسكربت فقط].
ملف [Dockerfile|nginx] لـ {place}
""", r"""
اشرح لي {subj} [بالتفصيل|بأمثلة|].
اكتب [مقالًا|موضوع تعبير] عن {subj}.
اكتب [رسالة|بريدًا إلكترونيًا] إلى {whom} بشأن [الضوضاء|فاتورة|استقالتي].
اكتب [قصة|قصيدة|حكاية] عن {thing}.
ما مزايا وعيوب [العمل من المنزل|الطاقة النووية|الحياة في الريف]؟
لماذا [السماء زرقاء|نحلم|البحر مالح]؟
كيف [أنام بشكل أفضل|أتعلم لغة جديدة|أستعد لمقابلة عمل]؟
وصفة [الكبسة|الحمص|الكشري] خطوة بخطوة
خطط لرحلة [ثلاثة أيام|أسبوع] في [إسطنبول|القاهرة|روما]
[لدي عرضا عمل|أشعر بالوحدة]. ماذا أفعل؟
احك لي حياة {person}.
أعد كتابة هذا النص بأسلوب ألطف: {parag}
""", r"""
ما عاصمة {country}؟
كم يساوي {n} [زائد|ناقص|ضرب|على] {d}؟
مرادف كلمة {word}؟
[متى|في أي سنة] [سقط جدار برلين|بدأت الحرب العالمية الأولى]؟
من [اخترع الهاتف|رسم الموناليزا|كتب ألف ليلة]؟
هل {n} عدد أولي؟ [نعم أو لا|]
كيف نقول "{word}" [بالإنجليزية|بالفرنسية]؟
كم [يومًا في السنة|غرامًا في الكيلو]؟
[مرحبا|السلام عليكم|شكرا|صباح الخير|كيف حالك؟|مع السلامة|حسنا]
{subj} في جملة واحدة.
{snip}\n\nما هذه اللغة؟ كلمة واحدة.
جمع كلمة {word}
ماذا تعني {acro}؟
ما المنفذ الافتراضي لـ {svc}؟
هل {country} على البحر؟ {limit}
""", hi="|||مرحبا، |من فضلك، |سؤال سريع: ", limit="كلمة واحدة.|الرقم فقط.|نعم أو لا|باختصار.", long="بالتفصيل.|في عدة فقرات.",
     subj="التمثيل الضوئي|التضخم|جهاز المناعة|الثقوب السوداء|تغير المناخ|الذكاء الاصطناعي|الحرب الباردة|الأندلس", task="يحسب عدد الكلمات في ملف|يحذف الأسطر المكررة|يرتب قائمة|يحول CSV إلى JSON|يولد كلمات مرور",
     thing="حارس منارة عجوز|إبريق شاي يتكلم|القطار الأخير|تنين خجول|قطة رمادية", country="بيرو|النرويج|اليابان|بولندا|كينيا|كندا|المغرب", word="نافذة|سريع|شجاع|خبز|حصان|شتاء|نور|بيت", whom="صاحب البيت|البنك|رئيس البلدية|صديق قديم|مديري",
     parag="نادرا ما تصل القطارات هنا في موعدها. نقف تحت المطر وننتظر ولا أحد يقول شيئا. كان الأمر مختلفا من قبل، يقول الكبار.")

lang("hi", r"""
{lang} में [एक प्रोग्राम|एक फ़ंक्शन|एक स्क्रिप्ट] लिखो जो {task}।
{lang} में `{err}` त्रुटि कैसे ठीक करूँ?
SQL क्वेरी: [शीर्ष दस ग्राहक|बिना डिलीवरी वाले ऑर्डर|हर महीने की बिक्री]
एक्सेल फ़ॉर्मूला जो [केवल भुगतान वाली पंक्तियाँ जोड़े|दोहराव गिने]
{snip}\n\n[यह कोड क्या करता है?|गलती ढूँढो।|हर पंक्ति समझाओ।|इसे {lang} में लिखो।|तेज़ बनाओ।]
git में [आखिरी commit वापस लेने|branch का नाम बदलने] के कमांड बताओ
मेरी वेबसाइट पर [टेक्स्ट कॉपी करने वाला बटन|ड्रॉपडाउन मेनू] चाहिए, सिर्फ़ [HTML और CSS|JavaScript]
{place} के लिए [Dockerfile|nginx config]
""", r"""
मुझे {subj} [विस्तार से|उदाहरण देकर|सरल शब्दों में] समझाओ।
{subj} पर [निबंध|लेख] लिखो।
{whom} को [शोर|बिल|इस्तीफ़े] के बारे में [पत्र|ईमेल] लिखो।
{thing} के बारे में एक [कहानी|कविता] लिखो।
[घर से काम करने|परमाणु ऊर्जा|गाँव में रहने] के फायदे और नुकसान क्या हैं?
[आसमान नीला|समुद्र खारा] क्यों होता है?
मैं [अच्छी नींद कैसे लूँ|नई भाषा कैसे सीखूँ|इंटरव्यू की तैयारी कैसे करूँ]?
[दाल मखनी|बिरयानी|खीर] बनाने की विधि बताओ
[जयपुर|रोम|केरल] की [तीन दिन|एक हफ़्ते] की यात्रा की योजना बनाओ
[मेरे पास दो नौकरी के प्रस्ताव हैं|मुझे अकेलापन लगता है]। क्या करूँ?
{person} के जीवन के बारे में बताओ।
इस लेख को और विनम्र बनाओ: {parag}
महाभारत की कहानी संक्षेप में एक पन्ने में लिखो
""", r"""
{country} की राजधानी क्या है?
{n} [गुणा|जोड़|घटा|भाग] {d} कितना होता है?
"{word}" का [पर्यायवाची|विलोम] शब्द?
[भारत कब आज़ाद हुआ|बर्लिन की दीवार कब गिरी|पहला विश्व युद्ध कब शुरू हुआ]?
[टेलीफ़ोन का आविष्कार किसने किया|गीतांजलि किसने लिखी|ताजमहल किसने बनवाया]?
क्या {n} अभाज्य संख्या है? [हाँ या नहीं|]
"{word}" को [अंग्रेज़ी|फ़्रेंच] में क्या कहते हैं?
[एक साल में कितने दिन|एक किलो में कितने ग्राम] होते हैं?
[नमस्ते|धन्यवाद|शुभ रात्रि|कैसे हो?|ठीक है|हैलो]
{subj}, एक वाक्य में।
{snip}\n\nयह कौन सी भाषा है? एक शब्द।
{acro} का पूरा नाम?
{svc} का डिफ़ॉल्ट पोर्ट?
क्या {country} में समुद्र है? {limit}
{n} किलोमीटर कितने मील?
सकारात्मक या नकारात्मक? [फिर कभी नहीं।|बहुत बढ़िया सेवा।]
""", hi="|||नमस्ते, |कृपया |एक सवाल: ", limit="एक शब्द में।|सिर्फ़ संख्या।|हाँ या नहीं|संक्षेप में।", long="विस्तार से।|कई अनुच्छेदों में।",
     subj="प्रकाश संश्लेषण|महँगाई|प्रतिरक्षा प्रणाली|ब्लैक होल|जलवायु परिवर्तन|कृत्रिम बुद्धिमत्ता|मुग़ल साम्राज्य|योग", task="फ़ाइल के शब्द गिने|दोहराई पंक्तियाँ हटाए|सूची क्रम में लगाए|CSV को JSON में बदले|पासवर्ड बनाए",
     thing="एक बूढ़ा प्रकाशस्तंभ रक्षक|बोलने वाली केतली|आखिरी ट्रेन|शर्मीला अजगर|एक भूरी बिल्ली", country="पेरू|नॉर्वे|जापान|पोलैंड|केन्या|कनाडा|नेपाल", word="खिड़की|तेज़|बहादुर|चूहा|रोटी|घोड़ा|सर्दी|रोशनी", whom="मकान मालिक|बैंक|महापौर|पुराने दोस्त|बॉस",
     parag="यहाँ ट्रेनें शायद ही कभी समय पर आती हैं। लोग बारिश में खड़े इंतज़ार करते हैं और कोई कुछ नहीं कहता। बुज़ुर्ग कहते हैं कि पहले ऐसा नहीं था।")

lang("sv", r"""
Skriv [ett {lang}-skript|ett program i {lang}|en funktion i {lang}] som {task}.
Hur fixar jag `{err}` i {lang}?
SQL-fråga för [de tio bästa kunderna|order utan leverans]
{snip}\n\n[Vad gör den här koden?|Hitta felet.|Förklara rad för rad.|Skriv om i {lang}.]
Excelformel som [summerar betalda rader|räknar dubbletter]
[Dockerfile|nginx-konfiguration] för {place}
Vilka gitkommandon för att [ångra senaste commiten|byta namn på en gren]?
""", r"""
Förklara {subj} [utförligt|med exempel|enkelt].
Skriv [ett brev|ett mejl] till {whom} om [bullret|en faktura].
Skriv en [saga|dikt|berättelse] om {thing}.
Vilka för- och nackdelar har [hemarbete|kärnkraft]?
Varför [spinner katter|är himlen blå|drömmer vi]?
Hur [sover jag bättre|lär jag mig ett språk|sparar jag pengar]?
Recept på [köttbullar|kanelbullar|ärtsoppa], steg för steg
[Jag känner mig ensam|Jag har två jobberbjudanden]. Vad ska jag göra?
Berätta om {person}s liv.
Tal till [bröllopet|avskedet]
""", r"""
Vad är huvudstaden i {country}?
Vad är {n} [gånger|plus|minus|delat med] {d}?
Synonym till {word}?
Vem [skrev Hamlet|uppfann telefonen|målade Mona Lisa]?
Är {n} ett primtal? [ja eller nej|]
Vad heter "{word}" på [engelska|tyska]?
Vilket år [föll Berlinmuren|började första världskriget]?
[Hej|Tjena|Tack|God morgon|Hej då|Hur mår du?|Okej]
{subj} i en mening.
Hur många [dagar har ett skottår|gram är ett kilo]?
Vad står {acro} för?
""", limit="Ett ord.|Bara siffran.|ja eller nej", long="Gärna utförligt.", subj="fotosyntes|inflation|immunförsvaret|svarta hål|klimatförändringar|vikingatiden", task="räknar ord|tar bort dubbletter|sorterar en lista|gör om CSV till JSON|skapar lösenord",
     thing="en gammal fyrvaktare|en talande tekanna|det sista tåget|en blyg drake", country="Peru|Norge|Japan|Polen|Kenya|Kanada", word="fönster|snabb|modig|bröd|häst|vinter", whom="min hyresvärd|banken|skolan|min chef")

lang("vi", r"""
Viết [một hàm {lang}|một chương trình {lang}|script {lang}] để {task}.
Sửa lỗi `{err}` trong {lang} thế nào?
Câu lệnh SQL lấy [mười khách hàng tốt nhất|đơn hàng chưa giao]
{snip}\n\n[Đoạn mã này làm gì?|Tìm lỗi.|Giải thích từng dòng.|Viết lại bằng {lang}.]
Công thức Excel để [cộng các dòng đã trả|đếm trùng lặp]
[Dockerfile|cấu hình nginx] cho {place}
""", r"""
Giải thích {subj} [chi tiết|dễ hiểu|].
Viết [một bài văn|bài luận] về {subj}.
Viết [thư|email] cho {whom} về [tiếng ồn|hóa đơn].
Viết [một câu chuyện|bài thơ] về {thing}.
Ưu và nhược điểm của [làm việc tại nhà|năng lượng hạt nhân]?
Tại sao [bầu trời màu xanh|chúng ta mơ|biển mặn]?
Làm sao để [ngủ ngon hơn|học ngoại ngữ|chuẩn bị phỏng vấn]?
Cách nấu [phở|bánh xèo] từng bước
[Tôi thấy cô đơn|Tôi có hai lời mời làm việc]. Nên làm gì?
Lên kế hoạch du lịch [Đà Nẵng|Hội An] ba ngày
""", r"""
Thủ đô của {country} là gì?
{n} [cộng|trừ|nhân|chia] {d} bằng bao nhiêu?
Từ đồng nghĩa với "{word}"?
Ai [phát minh ra điện thoại|viết Truyện Kiều]?
{n} có phải số nguyên tố không? [có hay không|]
"{word}" tiếng Anh là gì?
[Xin chào|Cảm ơn|Chào buổi sáng|Tạm biệt|Khỏe không?]
{subj}, một câu thôi.
Một năm có bao nhiêu ngày?
Bức tường Berlin sụp đổ năm nào?
""", limit="Một từ thôi.|Chỉ số.|có hay không", long="Thật chi tiết.", subj="quang hợp|lạm phát|hệ miễn dịch|hố đen|biến đổi khí hậu|trí tuệ nhân tạo", task="đếm từ trong tệp|xóa dòng trùng|sắp xếp danh sách|đổi CSV sang JSON|tạo mật khẩu",
     thing="người gác hải đăng già|ấm trà biết nói|chuyến tàu cuối", country="Peru|Na Uy|Nhật Bản|Ba Lan|Canada", word="cửa sổ|nhanh|dũng cảm|bánh mì|mùa đông", whom="chủ nhà|ngân hàng|sếp")

lang("id", r"""
[Buatkan|Tulis] [fungsi {lang}|program {lang}|skrip {lang}] yang {task}.
Bagaimana memperbaiki `{err}` di {lang}?
Query SQL untuk [sepuluh pelanggan terbaik|pesanan belum terkirim]
{snip}\n\n[Kode ini melakukan apa?|Cari bug-nya.|Jelaskan per baris.|Ubah ke {lang}.]
Rumus Excel untuk [menjumlah baris yang lunas|menghitung duplikat]
[Dockerfile|konfigurasi nginx] untuk {place}
""", r"""
Jelaskan {subj} [secara rinci|dengan contoh|].
Tulis [esai|artikel] tentang {subj}.
Tulis [surat|email] kepada {whom} tentang [kebisingan|tagihan].
Buat [cerita|puisi|dongeng] tentang {thing}.
Apa kelebihan dan kekurangan [kerja dari rumah|energi nuklir]?
Mengapa [langit biru|kita bermimpi|laut asin]?
Bagaimana cara [tidur nyenyak|belajar bahasa|menabung]?
Resep [rendang|nasi goreng] langkah demi langkah
[Saya merasa kesepian|Saya punya dua tawaran kerja]. Harus bagaimana?
Ceritakan kehidupan {person}.
""", r"""
Apa ibu kota {country}?
Berapa {n} [kali|tambah|kurang|bagi] {d}?
Sinonim dari "{word}"?
Siapa [penemu telepon|pelukis Mona Lisa]?
Apakah {n} bilangan prima? [ya atau tidak|]
Bahasa Inggrisnya "{word}"?
[Halo|Terima kasih|Selamat pagi|Apa kabar?|Oke|Sampai jumpa]
{subj} dalam satu kalimat.
Tahun berapa Tembok Berlin runtuh?
Kepanjangan {acro}?
""", limit="Satu kata.|Angkanya saja.|ya atau tidak", long="Yang rinci ya.", subj="fotosintesis|inflasi|sistem imun|lubang hitam|perubahan iklim|kecerdasan buatan", task="menghitung kata|menghapus baris ganda|mengurutkan daftar|mengubah CSV ke JSON|membuat sandi",
     thing="penjaga mercusuar tua|teko yang bisa bicara|kereta terakhir", country="Peru|Norwegia|Jepang|Polandia|Kanada", word="jendela|cepat|berani|roti|cahaya", whom="pemilik rumah|bank|bos saya")

lang("cs", r"""
Napiš [skript v {lang}|program v {lang}|funkci v {lang}], [který|která] {task}.
Jak opravit `{err}` v {lang}?
{snip}\n\n[Co dělá tento kód?|Najdi chybu.|Vysvětli řádek po řádku.|Přepiš do {lang}.]
SQL dotaz na [deset nejlepších zákazníků|objednávky bez doručení]
Vzorec v Excelu, který [sečte jen zaplacené řádky|spočítá duplicity]
""", r"""
Vysvětli [podrobně|na příkladech] {subj}.
Napiš [dopis|e-mail] {whom} kvůli [hluku|faktuře].
Napiš [pohádku|báseň|povídku] o {thing}.
Jaké jsou výhody a nevýhody [práce z domova|jaderné energie]?
Proč [kočky předou|je nebe modré|sníme]?
Jak [lépe spát|se naučit jazyk|ušetřit]?
Recept na [svíčkovou|knedlíky], krok za krokem
[Cítím se sám|Mám dvě nabídky práce]. Co mám dělat?
""", r"""
Jaké je hlavní město [země|státu] {country}?
Kolik je {n} [krát|plus|minus|děleno] {d}?
Synonymum ke slovu {word}?
Kdo [napsal Švejka|vynalezl telefon]?
Je {n} prvočíslo? [ano nebo ne|]
Jak se řekne „{word}“ anglicky?
[Ahoj|Dobrý den|Díky|Děkuji|Jak se máš?|Dobrou noc]
{subj} jednou větou.
V kterém roce padla Berlínská zeď?
""", limit="Jedno slovo.|Jen číslo.|ano nebo ne", long="Podrobně.", subj="fotosyntézu|inflaci|imunitu|černé díry|změnu klimatu|husitské války", task="počítá slova|maže duplicitní řádky|třídí seznam|generuje hesla",
     thing="starém strážci majáku|mluvící konvici|posledním vlaku", country="Peru|Norsko|Japonsko|Polsko|Kanada", word="okno|rychlý|chléb|zima|světlo", whom="pronajímateli|bance|šéfovi")
