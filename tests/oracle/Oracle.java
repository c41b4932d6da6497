import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Supplier;

import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.ReduceFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.event.WatermarkEvent;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.functions.windowing.delta.DeltaFunction;
import org.apache.flink.streaming.api.TimeDomain;
import org.apache.flink.streaming.api.TimerService;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.api.operators.Output;
import org.apache.flink.streaming.api.operators.co.IntervalJoinOperator;
import org.apache.flink.streaming.api.operators.co.KeyedCoProcessOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.*;
import org.apache.flink.streaming.api.windowing.evictors.CountEvictor;
import org.apache.flink.streaming.api.windowing.evictors.DeltaEvictor;
import org.apache.flink.streaming.api.windowing.evictors.Evictor;
import org.apache.flink.streaming.api.windowing.evictors.TimeEvictor;
import org.apache.flink.streaming.api.windowing.triggers.*;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.streaming.runtime.operators.windowing.WindowOperatorBuilder;
import org.apache.flink.streaming.runtime.streamrecord.LatencyMarker;
import org.apache.flink.streaming.runtime.streamrecord.RecordAttributes;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;
import org.apache.flink.streaming.util.AbstractStreamOperatorTestHarness;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.streaming.util.KeyedTwoInputStreamOperatorTestHarness;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Runs conformance cases with Flink's own operators. It reads a case a line (tests/conformance/FORMAT.md), and writes
 * a line with the `expect` that Flink gives to it, and `expect_error` if Flink refuses a step.
 */
public final class Oracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int MAX_PARALLELISM = 128;

    /** An element: key, value as JSON, gap of a dynamic session. */
    private static final class Row extends Tuple3<String, String, Long> {
        public Row() {}

        Row(JsonNode raw) {
            super(raw.get("key").asText(), raw.get("value").toString(), raw.path("gap").asLong());
        }
    }

    private static final TypeInformation<Tuple3<String, String, Long>> ROW =
            Types.TUPLE(Types.STRING, Types.STRING, Types.LONG);
    private static final KeySelector<Tuple3<String, String, Long>, String> KEY = row -> row.f0;

    /** Time of the timer whose hook runs, or null. The harness runs in one thread. */
    private static Long timer;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(JSON.writeValueAsString(new Oracle(JSON.readTree(line)).run()));
            out.flush();
        }
        out.flush();
    }

    private final JsonNode scenario;
    private final ArrayNode expect = JSON.createArrayNode();
    private List<AbstractStreamOperatorTestHarness<String>> subtasks = new ArrayList<>();
    private int step;

    private Oracle(JsonNode scenario) {
        this.scenario = scenario;
    }

    private ObjectNode run() throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", scenario.get("id"));
        JsonNode at = JSON.getNodeFactory().textNode("build");
        try {
            open(1, null);
            for (JsonNode raw : scenario.get("steps")) {
                at = JSON.getNodeFactory().numberNode(step);
                Map.Entry<String, JsonNode> only = raw.fields().next();
                act(only.getKey(), only.getValue());
                step++;
            }
        } catch (Exception error) {
            answer.putObject("expect_error").put("error", nameOf(error)).put("says", error.toString()).set("at", at);
        } finally {
            timer = null;
            close();
        }
        answer.set("expect", expect);
        return answer;
    }

    private static String nameOf(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof UnsupportedOperationException) {
                return "unsupported_operation";
            }
            if (cause instanceof IllegalArgumentException) {
                return "illegal_argument";
            }
            if (cause instanceof IllegalStateException) {
                return "illegal_state";
            }
            if (String.valueOf(cause.getMessage()).contains("Long.MIN_VALUE timestamp")) {
                return "missing_timestamp";
            }
        }
        return error.getClass().getName();
    }

    // --- steps ---------------------------------------------------------------------------------

    @SuppressWarnings("unchecked")
    private void act(String kind, JsonNode raw) throws Exception {
        switch (kind) {
            case "element" -> one(owner(raw)).processElement(record(raw));
            case "element1" -> two(owner(raw)).processElement1(record(raw));
            case "element2" -> two(owner(raw)).processElement2(record(raw));
            case "snapshot_restore" -> restore(subtasks.size());
            case "snapshot_rescale" -> restore(raw.get("parallelism").asInt());
            default -> {
                for (AbstractStreamOperatorTestHarness<String> subtask : subtasks) {
                    switch (kind) {
                        case "watermark" -> {
                            if (subtask instanceof KeyedOneInputStreamOperatorTestHarness) {
                                one(subtask).processWatermark(new Watermark(raw.asLong()));
                            } else {
                                two(subtask).processBothWatermarks(new Watermark(raw.asLong()));
                            }
                        }
                        case "watermark1" -> two(subtask).processWatermark1(new Watermark(raw.asLong()));
                        case "watermark2" -> two(subtask).processWatermark2(new Watermark(raw.asLong()));
                        case "idle1" -> two(subtask).processWatermarkStatus1(status(raw));
                        case "idle2" -> two(subtask).processWatermarkStatus2(status(raw));
                        case "processing_time" -> subtask.setProcessingTime(raw.asLong());
                        default -> throw new AssertionError("unknown step " + kind);
                    }
                }
            }
        }
    }

    private static WatermarkStatus status(JsonNode idle) {
        return idle.asBoolean() ? WatermarkStatus.IDLE : WatermarkStatus.ACTIVE;
    }

    private AbstractStreamOperatorTestHarness<String> owner(JsonNode raw) {
        String key = raw.get("key").asText();
        return subtasks.get(
                KeyGroupRangeAssignment.assignKeyToParallelOperator(key, MAX_PARALLELISM, subtasks.size()));
    }

    private static StreamRecord<Tuple3<String, String, Long>> record(JsonNode raw) {
        JsonNode time = raw.get("ts");
        return time.isNull() ? new StreamRecord<>(new Row(raw)) : new StreamRecord<>(new Row(raw), time.asLong());
    }

    @SuppressWarnings("unchecked")
    private static KeyedOneInputStreamOperatorTestHarness<String, Tuple3<String, String, Long>, String> one(
            AbstractStreamOperatorTestHarness<String> subtask) {
        return (KeyedOneInputStreamOperatorTestHarness<String, Tuple3<String, String, Long>, String>) subtask;
    }

    @SuppressWarnings("unchecked")
    private static KeyedTwoInputStreamOperatorTestHarness<
                    String, Tuple3<String, String, Long>, Tuple3<String, String, Long>, String>
            two(AbstractStreamOperatorTestHarness<String> subtask) {
        return (KeyedTwoInputStreamOperatorTestHarness<
                        String, Tuple3<String, String, Long>, Tuple3<String, String, Long>, String>)
                subtask;
    }

    private void restore(int parallelism) throws Exception {
        OperatorSubtaskState[] parts = new OperatorSubtaskState[subtasks.size()];
        for (int index = 0; index < parts.length; index++) {
            parts[index] = subtasks.get(index).snapshot(step, step);
        }
        close();
        open(parallelism, AbstractStreamOperatorTestHarness.repackageState(parts));
    }

    /** Closes the operators, and their environments, which would keep threads and memory. */
    private void close() throws Exception {
        for (AbstractStreamOperatorTestHarness<String> subtask : subtasks) {
            subtask.close();
            subtask.getEnvironment().close();
        }
    }

    private void open(int parallelism, OperatorSubtaskState state) throws Exception {
        int before = Math.max(subtasks.size(), 1);
        subtasks = new ArrayList<>();
        for (int index = 0; index < parallelism; index++) {
            AbstractStreamOperatorTestHarness<String> subtask = harness(parallelism, index);
            boolean isLast = index == parallelism - 1;
            subtask.setOutputCreator(serializer -> new Recorder(isLast));
            subtask.setup();
            if (state != null) {
                subtask.initializeState(AbstractStreamOperatorTestHarness.repartitionOperatorState(
                        state, MAX_PARALLELISM, before, parallelism, index));
            }
            subtask.open();
            subtasks.add(subtask);
        }
    }

    private AbstractStreamOperatorTestHarness<String> harness(int parallelism, int index) throws Exception {
        String kind = scenario.get("kind").asText();
        switch (kind) {
            case "window_operator":
                return new KeyedOneInputStreamOperatorTestHarness<>(
                        windows(scenario.get("operator")), KEY, Types.STRING, MAX_PARALLELISM, parallelism, index);
            case "keyed_process":
                return new KeyedOneInputStreamOperatorTestHarness<>(
                        new KeyedProcessOperator<>(new OneInput(scenario.get("function").toString())),
                        KEY, Types.STRING, MAX_PARALLELISM, parallelism, index);
            case "keyed_co_process":
                return new KeyedTwoInputStreamOperatorTestHarness<>(
                        new KeyedCoProcessOperator<>(new TwoInputs(scenario.get("function").toString())),
                        KEY, KEY, Types.STRING, MAX_PARALLELISM, parallelism, index);
            case "interval_join":
                return new KeyedTwoInputStreamOperatorTestHarness<>(
                        join(scenario.get("join")), KEY, KEY, Types.STRING, MAX_PARALLELISM, parallelism, index);
            default:
                throw new AssertionError("unknown kind " + kind);
        }
    }

    // --- output --------------------------------------------------------------------------------

    /** Writes the records of a step in the order in which the operator emits them, side outputs among them. */
    private final class Recorder implements Output<StreamRecord<String>> {
        private final boolean isLast;

        Recorder(boolean isLast) {
            this.isLast = isLast;
        }

        @Override
        public void collect(StreamRecord<String> record) {
            ObjectNode output = add((ObjectNode) read(record.getValue()));
            output.set("ts", time(record));
            if (timer != null) {
                output.put("timer", timer);
            }
        }

        @Override
        public <X> void collect(OutputTag<X> tag, StreamRecord<X> record) {
            ObjectNode of = JSON.createObjectNode();
            boolean isLate = tag.getId().startsWith("late");
            if (record.getValue() instanceof Tuple3<?, ?, ?> row) {
                if (tag.getId().equals("late")) {
                    of.put("key", (String) row.f0);
                } else {
                    of.put("side", tag.getId().equals("late left") ? 1 : 2);
                }
                of.set("value", read((String) row.f1));
            } else {
                of.put("tag", tag.getId()).set("value", read((String) record.getValue()));
            }
            of.set("ts", time(record));
            add(JSON.createObjectNode().set(isLate ? "late" : "side", of));
        }

        @Override
        public void emitWatermark(Watermark mark) {
            if (isLast && scenario.get("kind").asText().startsWith("keyed")) {
                add(JSON.createObjectNode().put("watermark", mark.getTimestamp()));
            }
        }

        @Override
        public void emitWatermarkStatus(WatermarkStatus status) {}

        @Override
        public void emitLatencyMarker(LatencyMarker marker) {}

        @Override
        public void emitRecordAttributes(RecordAttributes attributes) {}

        @Override
        public void emitWatermark(WatermarkEvent event) {}

        @Override
        public void close() {}

        private static JsonNode time(StreamRecord<?> record) {
            boolean has = record.hasTimestamp() && record.getTimestamp() != Long.MIN_VALUE;
            return has ? JSON.getNodeFactory().numberNode(record.getTimestamp()) : null;
        }

        private ObjectNode add(ObjectNode output) {
            expect.add(output.put("after_step", step));
            return output;
        }
    }

    private static JsonNode read(String text) {
        try {
            return JSON.readTree(text);
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    private static long number(Tuple3<String, String, Long> row) {
        return Long.parseLong(row.f1);
    }

    // --- windows -------------------------------------------------------------------------------

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static org.apache.flink.streaming.api.operators.OneInputStreamOperator<Tuple3<String, String, Long>, String>
            windows(JsonNode raw) {
        WindowAssigner assigner = assigner(raw.get("assigner"));
        Trigger inner = raw.get("trigger").isNull() ? assigner.getDefaultTrigger() : trigger(raw.get("trigger"));
        WindowOperatorBuilder<Tuple3<String, String, Long>, String, Window> builder = new WindowOperatorBuilder<>(
                assigner, new Noted(inner), new ExecutionConfig(), ROW, KEY, Types.STRING);
        builder.allowedLateness(Duration.ofMillis(raw.get("allowed_lateness").asLong()));
        if (raw.get("late_output").asBoolean()) {
            builder.sideOutputLateData(new OutputTag<>("late", ROW));
        }
        if (!raw.get("evictor").isNull()) {
            builder.evictor(evictor(raw.get("evictor")));
        }
        if (raw.get("function").asText().equals("reduce_sum")) {
            ReduceFunction<Tuple3<String, String, Long>> sum =
                    (a, b) -> new Tuple3<>(a.f0, String.valueOf(number(a) + number(b)), 0L);
            return builder.reduce(sum, new OfWindow("\"passthrough\""));
        }
        return builder.process(new OfWindow(raw.get("function").toString()));
    }

    private static Duration millis(JsonNode raw) {
        return Duration.ofMillis(raw.asLong());
    }

    @SuppressWarnings("rawtypes")
    private static WindowAssigner assigner(JsonNode raw) {
        boolean event = raw.path("time").asText("event").equals("event");
        Duration size = millis(raw.path("size")), slide = millis(raw.path("slide")), offset = millis(raw.path("offset"));
        switch (raw.get("type").asText()) {
            case "tumbling":
                return event ? TumblingEventTimeWindows.of(size, offset) : TumblingProcessingTimeWindows.of(size, offset);
            case "sliding":
                return event
                        ? SlidingEventTimeWindows.of(size, slide, offset)
                        : SlidingProcessingTimeWindows.of(size, slide, offset);
            case "session":
                Duration gap = millis(raw.get("gap"));
                return event ? EventTimeSessionWindows.withGap(gap) : ProcessingTimeSessionWindows.withGap(gap);
            case "dynamic_session":
                SessionWindowTimeGapExtractor<Tuple3<String, String, Long>> gaps = row -> row.f2;
                return event
                        ? EventTimeSessionWindows.withDynamicGap(gaps)
                        : ProcessingTimeSessionWindows.withDynamicGap(gaps);
            case "global":
                return raw.path("end_of_stream").asBoolean()
                        ? GlobalWindows.createWithEndOfStreamTrigger()
                        : GlobalWindows.create();
            default:
                throw new AssertionError("unknown assigner " + raw);
        }
    }

    @SuppressWarnings({"rawtypes", "unchecked"})
    private static Trigger trigger(JsonNode raw) {
        switch (raw.get("type").asText()) {
            case "event_time":
                return EventTimeTrigger.create();
            case "processing_time":
                return ProcessingTimeTrigger.create();
            case "count":
                return CountTrigger.of(raw.get("count").asLong());
            case "continuous_event_time":
                return ContinuousEventTimeTrigger.of(millis(raw.get("interval")));
            case "continuous_processing_time":
                return ContinuousProcessingTimeTrigger.of(millis(raw.get("interval")));
            case "delta":
                return DeltaTrigger.of(
                        raw.get("threshold").asDouble(), (DeltaFunction) DELTA, ROW.createSerializer(new ExecutionConfig().getSerializerConfig()));
            case "never":
                return GlobalWindows.create().getDefaultTrigger();
            case "end_of_stream":
                return GlobalWindows.createWithEndOfStreamTrigger().getDefaultTrigger();
            case "purging":
                return PurgingTrigger.of(trigger(raw.get("of")));
            case "processing_timeout":
                return ProcessingTimeoutTrigger.of(
                        trigger(raw.get("of")),
                        millis(raw.get("timeout")),
                        raw.path("reset_timer_on_new_record").asBoolean(false),
                        raw.path("clear_on_timeout").asBoolean(true));
            default:
                throw new AssertionError("unknown trigger " + raw);
        }
    }

    private static final DeltaFunction<Tuple3<String, String, Long>> DELTA =
            (before, after) -> number(after) - number(before);

    @SuppressWarnings("rawtypes")
    private static Evictor evictor(JsonNode raw) {
        boolean after = raw.path("evict_after").asBoolean(false);
        switch (raw.get("type").asText()) {
            case "count":
                return CountEvictor.of(raw.get("max").asLong(), after);
            case "time":
                return TimeEvictor.of(millis(raw.get("size")), after);
            case "delta":
                return DeltaEvictor.of(raw.get("threshold").asDouble(), DELTA, after);
            default:
                throw new AssertionError("unknown evictor " + raw);
        }
    }

    /** A trigger that notes the time of the timer whose hook runs. The operator fires after the hook returns. */
    private static final class Noted extends Trigger<Object, Window> {
        private final Trigger<Object, Window> inner;

        Noted(Trigger<Object, Window> inner) {
            this.inner = inner;
        }

        @Override
        public TriggerResult onElement(Object element, long time, Window window, TriggerContext context)
                throws Exception {
            timer = null;
            return inner.onElement(element, time, window, context);
        }

        @Override
        public TriggerResult onProcessingTime(long time, Window window, TriggerContext context) throws Exception {
            timer = time;
            return inner.onProcessingTime(time, window, context);
        }

        @Override
        public TriggerResult onEventTime(long time, Window window, TriggerContext context) throws Exception {
            timer = time;
            return inner.onEventTime(time, window, context);
        }

        @Override
        public boolean canMerge() {
            return inner.canMerge();
        }

        @Override
        public void onMerge(Window window, OnMergeContext context) throws Exception {
            inner.onMerge(window, context);
        }

        @Override
        public void clear(Window window, TriggerContext context) throws Exception {
            inner.clear(window, context);
        }
    }

    /** The window functions that cases name. */
    private static final class OfWindow
            extends ProcessWindowFunction<Tuple3<String, String, Long>, String, String, Window> {
        private final String function;

        OfWindow(String function) {
            this.function = function;
        }

        @Override
        public void process(
                String key, Context context, Iterable<Tuple3<String, String, Long>> rows, Collector<String> out) {
            JsonNode raw = read(function);
            String kind = raw.isTextual() ? raw.asText() : raw.get("type").asText();
            ArrayNode values = JSON.createArrayNode();
            long sum = 0;
            for (Tuple3<String, String, Long> row : rows) {
                if (row == null) {
                    // What remains of a window to reduce whose evictor took everything.
                    continue;
                }
                values.add(read(row.f1));
                sum += number(row);
            }
            switch (kind) {
                case "sum" -> emit(key, context, JSON.getNodeFactory().numberNode(sum), out);
                case "collect" -> emit(key, context, values, out);
                case "sorted" -> {
                    List<JsonNode> sorted = new ArrayList<>();
                    values.forEach(sorted::add);
                    sorted.sort((a, b) -> Long.compare(a.asLong(), b.asLong()));
                    emit(key, context, JSON.createArrayNode().addAll(sorted), out);
                }
                case "count" -> emit(key, context, JSON.getNodeFactory().numberNode(values.size()), out);
                case "passthrough" -> {
                    for (JsonNode value : values) {
                        emit(key, context, value, out);
                    }
                }
                case "query_time" -> {
                    boolean event = raw.get("domain").asText().equals("event");
                    long now = event ? context.currentWatermark() : context.currentProcessingTime();
                    emit(key, context, JSON.getNodeFactory().numberNode(now), out);
                }
                case "side_output_first" -> {
                    for (JsonNode tag : raw.get("tags")) {
                        context.output(new OutputTag<>(tag.asText(), Types.STRING), values.get(0).toString());
                    }
                }
                default -> throw new AssertionError("unknown function " + function);
            }
        }

        private static void emit(
                String key,
                ProcessWindowFunction<Tuple3<String, String, Long>, String, String, Window>.Context context,
                JsonNode value,
                Collector<String> out) {
            ObjectNode output = JSON.createObjectNode().put("key", key);
            output.set("value", value);
            if (context.window() instanceof TimeWindow window) {
                output.putArray("window").add(window.getStart()).add(window.getEnd());
            } else {
                output.put("window", "global");
            }
            out.collect(output.toString());
        }
    }

    // --- process functions and joins -----------------------------------------------------------

    /** The parts of a context that function `acts` uses, for one input and for two. */
    /** What a function may do while it handles an element or a timer. */
    private static final class Acting {
        private final TimerService timers;
        private final Collector<String> out;
        private final Supplier<Long> time;
        private final BiConsumer<OutputTag<String>, String> sides;

        Acting(
                TimerService timers,
                Collector<String> out,
                Supplier<Long> time,
                BiConsumer<OutputTag<String>, String> sides) {
            this.timers = timers;
            this.out = out;
            this.time = time;
            this.sides = sides;
        }

        Long time() {
            return time.get();
        }

        long watermark() {
            return timers.currentWatermark();
        }

        long clock() {
            return timers.currentProcessingTime();
        }

        void side(String tag, String value) {
            sides.accept(new OutputTag<>(tag, Types.STRING), value);
        }

        void emit(JsonNode value) {
            out.collect(shown(value));
        }

        void timer(boolean registers, String domain, long time) {
            if (domain.equals("event")) {
                if (registers) {
                    timers.registerEventTimeTimer(time);
                } else {
                    timers.deleteEventTimeTimer(time);
                }
            } else if (registers) {
                timers.registerProcessingTimeTimer(time);
            } else {
                timers.deleteProcessingTimeTimer(time);
            }
        }
    }

    /** Function `acts`: each element lists what is done, and each timer may set the next one. */
    private static void acts(JsonNode acts, String key, ValueState<Long> seen, Acting context) throws Exception {
        for (JsonNode act : acts) {
            switch (act.get(0).asText()) {
                case "register", "delete" -> context.timer(
                        act.get(0).asText().equals("register"), act.get(1).asText(), act.get(2).asLong());
                case "add" -> seen.update((seen.value() == null ? 0 : seen.value()) + act.get(1).asLong());
                case "clear" -> seen.clear();
                case "side" -> context.side(act.get(1).asText(), act.get(2).toString());
                case "emit" -> context.emit(JSON.createArrayNode().add(key).add(seen.value())
                        .add(context.watermark()).add(context.clock()).add(context.time()));
                default -> throw new AssertionError("unknown act " + act);
            }
        }
    }

    private static void timer(
            JsonNode function, TimeDomain of, long time, String key, ValueState<Long> seen, Acting context)
            throws Exception {
        String domain = of == TimeDomain.EVENT_TIME ? "event" : "processing";
        context.emit(JSON.createArrayNode().add("TIMER").add(domain).add(time).add(key).add(seen.value())
                .add(context.watermark()).add(context.clock()));
        if (function.has("again") && time + function.get("again").asLong() <= function.get("until").asLong()) {
            context.timer(true, domain, time + function.get("again").asLong());
        }
    }

    private static ValueStateDescriptor<Long> seen() {
        return new ValueStateDescriptor<>("seen", Types.LONG);
    }

    private static String shown(JsonNode value) {
        return JSON.createObjectNode().set("value", value).toString();
    }

    private static final class OneInput extends KeyedProcessFunction<String, Tuple3<String, String, Long>, String> {
        private final String function;
        private transient ValueState<Long> seen;

        OneInput(String function) {
            this.function = function;
        }

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(seen());
        }

        @Override
        public void processElement(Tuple3<String, String, Long> row, Context context, Collector<String> out)
                throws Exception {
            Acting acting = new Acting(context.timerService(), out, context::timestamp, context::output);
            acts(read(row.f1), context.getCurrentKey(), seen, acting);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            Acting acting = new Acting(context.timerService(), out, context::timestamp, context::output);
            timer(read(function), context.timeDomain(), time, context.getCurrentKey(), seen, acting);
        }
    }

    private static final class TwoInputs
            extends KeyedCoProcessFunction<
                    String, Tuple3<String, String, Long>, Tuple3<String, String, Long>, String> {
        private final String function;
        private transient ValueState<Long> seen;

        TwoInputs(String function) {
            this.function = function;
        }

        @Override
        public void open(OpenContext context) {
            seen = getRuntimeContext().getState(seen());
        }

        @Override
        public void processElement1(Tuple3<String, String, Long> row, Context context, Collector<String> out)
                throws Exception {
            Acting acting = new Acting(context.timerService(), out, context::timestamp, context::output);
            acts(read(row.f1), context.getCurrentKey(), seen, acting);
        }

        @Override
        public void processElement2(Tuple3<String, String, Long> row, Context context, Collector<String> out)
                throws Exception {
            Acting acting = new Acting(context.timerService(), out, context::timestamp, context::output);
            acts(read(row.f1), context.getCurrentKey(), seen, acting);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            Acting acting = new Acting(context.timerService(), out, context::timestamp, context::output);
            timer(read(function), context.timeDomain(), time, context.getCurrentKey(), seen, acting);
        }
    }

    private static IntervalJoinOperator<String, Tuple3<String, String, Long>, Tuple3<String, String, Long>, String>
            join(JsonNode raw) {
        boolean isLate = raw.get("late_output").asBoolean();
        TypeSerializer<Tuple3<String, String, Long>> rows =
                ROW.createSerializer(new ExecutionConfig().getSerializerConfig());
        return new IntervalJoinOperator<>(
                raw.get("lower").asLong(),
                raw.get("upper").asLong(),
                raw.get("lower_inclusive").asBoolean(),
                raw.get("upper_inclusive").asBoolean(),
                isLate ? new OutputTag<>("late left", ROW) : null,
                isLate ? new OutputTag<>("late right", ROW) : null,
                rows,
                rows,
                new Joined());
    }

    private static final class Joined
            extends ProcessJoinFunction<Tuple3<String, String, Long>, Tuple3<String, String, Long>, String> {
        @Override
        public void processElement(
                Tuple3<String, String, Long> left,
                Tuple3<String, String, Long> right,
                Context context,
                Collector<String> out) {
            ObjectNode output = JSON.createObjectNode().put("key", left.f0);
            output.putArray("value").add(read(left.f1)).add(read(right.f1));
            out.collect(output.toString());
        }
    }
}
