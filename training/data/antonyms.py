"""Everyday English words and their opposites, for questions that ask the contrary of what a text says."""

_PAIRS = """
first:last|second first:final last:first earliest:latest latest:earliest oldest:newest|youngest newest:oldest
largest:smallest smallest:largest biggest:smallest longest:shortest shortest:longest highest:lowest lowest:highest
tallest:shortest greatest:least strongest:weakest best:worst worst:best most:least|fewest least:most fewest:most
more:less|fewer less:more fewer:more higher:lower lower:higher larger:smaller smaller:larger bigger:smaller
better:worse worse:better older:younger|newer younger:older earlier:later later:earlier longer:shorter
before:after after:before during:before|after since:until until:since above:below below:above
over:under under:over inside:outside outside:inside within:outside with:without without:with
north:south south:north east:west west:east northern:southern southern:northern eastern:western western:eastern
left:joined joined:left began:ended begin:end start:end|stop started:ended|stopped starts:ends ended:began end:begin|start
beginning:end opened:closed open:close closed:opened created:destroyed|abolished destroyed:built|created built:demolished
founded:dissolved|closed established:abolished|dissolved abolished:established introduced:removed|withdrawn
increase:decrease|fall increased:decreased|fell decrease:increase decreased:increased rise:fall rose:fell fall:rise
fell:rose grow:shrink grew:shrank growth:decline decline:growth declined:grew expanded:reduced reduced:increased
win:lose won:lost lose:win lost:won winner:loser winning:losing losing:winning defeated:lost success:failure failure:success
successful:unsuccessful failed:succeeded gained:lost gain:loss loss:gain profit:loss
accept:reject|refuse accepted:rejected|refused rejected:accepted refused:agreed agreed:refused agree:disagree
approved:rejected support:oppose supported:opposed supports:opposes oppose:support opposed:supported for:against
against:for allow:forbid|prevent allowed:forbidden|banned allows:prevents banned:allowed prevent:allow|cause
prevented:allowed prohibited:allowed permitted:forbidden include:exclude includes:excludes included:excluded
added:removed removed:added add:remove buy:sell bought:sold sold:bought purchase:sell purchased:sold
arrive:leave arrived:left leave:enter enter:leave entered:left moved:stayed import:export imported:exported
exported:imported borrow:lend rich:poor wealthy:poor poor:rich strong:weak weak:strong hard:soft|easy easy:hard
difficult:easy fast:slow slow:fast quickly:slowly slowly:quickly high:low low:high long:short short:long large:small
small:large big:small great:minor major:minor minor:major main:secondary primary:secondary secondary:primary
old:new|young new:old young:old early:late late:early modern:ancient ancient:modern former:current current:former
previous:next next:previous original:revised|later public:private private:public national:local|international
local:national international:domestic domestic:foreign foreign:domestic urban:rural rural:urban
male:female female:male men:women women:men man:woman woman:man boys:girls girls:boys father:mother mother:father
son:daughter daughter:son brother:sister sister:brother husband:wife wife:husband king:queen queen:king
like:dislike|hate liked:disliked|hated likes:dislikes love:hate loved:hated hate:love hated:loved enjoy:dislike
enjoyed:disliked recommend:reject recommended:rejected good:bad bad:good positive:negative negative:positive
popular:unpopular famous:unknown common:rare|uncommon rare:common rarely:often often:rarely|never usually:rarely
always:never never:always only:never all:none|few few:many every:no some:no
true:false false:true correct:wrong wrong:right right:wrong|left left:right possible:impossible legal:illegal
necessary:unnecessary important:unimportant similar:different different:same same:different able:unable
known:unknown natural:artificial artificial:natural direct:indirect active:inactive full:empty empty:full
light:dark|heavy dark:light hot:cold cold:hot warm:cool dry:wet wet:dry wide:narrow deep:shallow thick:thin
heavy:light cheap:expensive expensive:cheap free:paid safe:dangerous dangerous:safe clean:dirty happy:sad sad:happy
born:buried died:lived|survived death:birth birth:death alive:dead killed:saved survive:die survived:died
attack:defend attacked:defended enemy:ally ally:enemy war:peace peace:war allies:enemies friend:enemy friends:enemies
advantage:disadvantage advantages:disadvantages benefit:harm benefits:drawbacks strength:weakness cause:prevent
caused:prevented causes:prevents help:hinder helped:hindered improve:worsen improved:worsened encouraged:discouraged
protect:endanger appear:disappear appeared:disappeared remember:forget found:lost find:lose learned:forgot
maximum:minimum minimum:maximum top:bottom bottom:top front:back back:front upper:lower inner:outer
majority:minority minority:majority gave:took given:taken take:give took:gave
received:sent|gave receive:send send:receive sent:received teach:learn taught:learned question:answer
"""


def _read(pairs: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word, opposites in (entry.split(":") for entry in pairs.split()):
        # A word of several meanings stands in several places: left of joined, and left of right.
        found[word] = found.get(word, ()) + tuple(opposites.split("|"))
    return found


ANTONYMS = _read(_PAIRS)
"""A word in lower case and its opposites."""
