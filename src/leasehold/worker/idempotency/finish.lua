-- Records that a holder has done it; the conditions are those of may_finish in rules.py.
-- KEYS: the key. ARGV: source, fence, run, length of the window in milliseconds, and the result, if
-- there is one. Gives nil if it is recorded, or source and fence of whoever took over.
local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local source, fence, run = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local entry = redis.call('HMGET', KEYS[1], 'source', 'fence', 'run', 'done')
if entry[1] and entry[3] ~= run then
    local older = entry[4] ~= '1' and entry[1] == source and tonumber(entry[2]) < fence
    if not older then
        return {entry[1], entry[2]}
    end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'source', source, 'fence', ARGV[2], 'run', run, 'done', '1',
    'since_ms', now_ms, 'held_until_ms', now_ms)
if ARGV[5] then
    redis.call('HSET', KEYS[1], 'result', ARGV[5])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return false
