"""English function words, which say little about the topic of a text."""

ARTICLES = (
    "the a an this that these those such same other another each every either neither both all any some"
)
PRONOUNS = (
    "i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its "
    "itself we us our ours ourselves they them their theirs themselves one ones who whom whose which what "
    "whatever whoever whichever someone somebody something anyone anybody anything everyone everybody "
    "everything nobody nothing none"
)
PREPOSITIONS = (
    "of in to for with on at by from as into onto about above across after against along among amongst "
    "around before behind below beneath beside besides between beyond despite down during except "
    "inside like near off opposite out outside over past per round since through throughout till "
    "toward towards under underneath until unto up upon versus via within without"
)
CONJUNCTIONS = (
    "and or but nor so yet if then else than because although though while whereas whether unless when "
    "whenever where wherever whereby why how however therefore thus hence moreover furthermore nevertheless "
    "nonetheless otherwise instead meanwhile"
)
VERBS = (
    "be am is are was were been being have has had having do does did done doing can could may might must "
    "shall should will would ought become becomes became get gets got make makes made use uses used using "
    "include includes included including call called known give given take taken seem seems seen say said"
)
ADVERBS = (
    "not no yes only just also too very quite rather much many more most less least few fewer several own "
    "even still already again ever never always often usually sometimes generally commonly mostly mainly "
    "almost nearly perhaps now here there once twice first second third last later early earlier well soon "
    "away back far further together apart alone especially particularly actually really simply due according "
    "various certain different new old large small long good great high low next following former latter "
    "two three four five six seven eight nine ten hundred thousand million"
)
FUNCTION_WORDS = frozenset(" ".join((ARTICLES, PRONOUNS, PREPOSITIONS, CONJUNCTIONS, VERBS, ADVERBS)).split())
